"""Programs of other projects run on kvstream; each failure of their tests has a known reason.

Only the core runs unless `KVSTREAM_PROGRAMS` is set; `make programs` runs all.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs.catalog import PROGRAMS
from tests.programs.environment import Missing
from tests.programs.outcomes import RUN_S_MAX, Program, reason_of
from tests.serving import ServerProcess

_ALL = "KVSTREAM_PROGRAMS" in os.environ
_CHOSEN = [each for each in PROGRAMS if each.core or _ALL]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server for one program; its warnings are not errors, since some programs provoke them."""
    server = ServerProcess(tmp_path / "store", "--durability", "no", "--loglevel", "nothing")
    yield server
    server.end()


@pytest.mark.timeout(3 * RUN_S_MAX)
@pytest.mark.parametrize("program", _CHOSEN, ids=lambda each: f"{each.name}: {each.ran[:30]}")
def test_program(program: Program, server: ServerProcess) -> None:
    try:
        outcomes = program.run(server.port)
    except Missing as error:
        needs_npm = program.origin == "npm" and "KVSTREAM_WITHOUT_NPM" in os.environ
        if os.environ.get("KVSTREAM_REQUIRE_ALL") == "1" and not needs_npm:
            raise
        pytest.skip(str(error))
    failed = [each for each in outcomes if each.status == "failed"]
    unexplained = [each for each in failed if reason_of(each, program.known) is None]
    assert not unexplained, "\n\n".join(f"{x.test}:\n{x.text[:2000]}" for x in unexplained)
    assert any(each.status == "passed" for each in outcomes)
