"""docs/cli.md has the help of all commands."""

from kvstream.cli.exit_codes import MEANINGS, ExitCode
from kvstream.cli.reference import reference
from tests.cli.program import ROOT


def test_the_reference_in_the_docs_is_current() -> None:
    written = (ROOT / "docs" / "cli.md").read_text()
    assert written == "\n".join(reference()) + "\n", (
        "run: python -m kvstream.cli.reference > docs/cli.md"
    )


def test_every_exit_code_has_a_meaning() -> None:
    assert list(MEANINGS) == list(ExitCode)
