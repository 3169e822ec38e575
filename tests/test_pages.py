"""The documentation: its links lead somewhere, and design.md stays short."""

import re
import runpy
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DESIGN = ROOT / "design.md"
README = ROOT / "README.md"
PAGES = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "README.md",
)
EXPLAINED = (
    *(DESIGN, ROOT / "docs" / "development.md"),
    *sorted((ROOT / "docs").glob("internals*.md")),
)
FOLDERS = (ROOT, *(ROOT / name for name in ("kvstream", "kvstream/migration", "tests")))
SECTIONS_LINES_MAX = 320
"""The length of design.md before its decisions: a quarter of an hour to read."""
DECISION_LINES_MAX = 3


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def broken_links(page: Path) -> Iterator[str]:
    """Yield the broken links of a page."""
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_broken(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_the_readme_leads_to_every_page() -> None:
    found: set[Path] = set()
    left = {README}
    while left:
        page = left.pop()
        found.add(page)
        links = re.findall(r"\]\(([^)#\s]+\.md)", page.read_text())
        left |= {(page.parent / link).resolve() for link in links if "://" not in link} - found
    assert {page.resolve() for page in PAGES} - found == set()


@pytest.mark.parametrize("page", EXPLAINED, ids=lambda page: page.name)
def test_every_named_module_exists(page: Path) -> None:
    named = set(re.findall(r"`((?:\w+/)+\w*(?:\.pyx?)?)`", page.read_text()))
    there = {
        name
        for name in named
        for path in (folder / name for folder in FOLDERS)
        if path.exists() or path.with_suffix(".py").exists()
    }
    assert named
    assert named - there == set()


def test_every_module_that_the_code_names_exists() -> None:
    code = [
        path
        for folder in ("kvstream", "meta", "cli")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".pyx", ".pxd", ".lua")
    ]
    there = {path.name for path in (*code, *ROOT.glob("*.py"), *(ROOT / "tests").glob("*.py"))}
    named = {
        (name, str(path.relative_to(ROOT)))
        for path in code
        for name in re.findall(r"\b\w+\.(?:py|pyx|lua)\b", path.read_text())
    }
    assert {each for each in named if each[0] not in there} == set()


def test_the_design_is_short_and_each_decision_has_its_date() -> None:
    sections, decisions = DESIGN.read_text().split("\n## 12. Decisions\n")
    assert len(sections.splitlines()) <= SECTIONS_LINES_MAX
    each = re.split(r"^- ", decisions, flags=re.MULTILINE)[1:]
    assert each
    for decision in each:
        assert re.match(r"2\d{3}-\d\d-\d\d \*\*", decision), decision
        body = decision.split("\n\n")[0]
        assert len(body.strip().splitlines()) <= DECISION_LINES_MAX, decision


def test_the_index_of_the_site_lists_every_page() -> None:
    listed = set((ROOT / "docs" / "index.md").read_text().splitlines())
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - listed == {"index"}


def test_the_pictures_are_drawn_by_their_program() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "pictures" / "draw.py"))["PICTURES"]
    assert len(drawn) == 6
    for name, text in drawn.items():
        assert (ROOT / "docs" / "pictures" / f"{name}.svg").read_text() == text


def test_what_pypi_shows_has_absolute_links() -> None:
    published = runpy.run_path(str(ROOT / ".ci" / "published.py"))
    page = published["with_absolute_links"](README.read_text(), "https://host/kv", "v1")
    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert "https://host/kv/blob/v1/docs/durability.md" in links
    assert [link for link in links if "://" not in link and link[0] != "#"] == []
    text = (ROOT / "pyproject.toml").read_text()
    table = tomllib.loads(published["with_addresses"](text, "https://host/kv", "v1"))
    assert table["project"]["urls"]["Source"] == "https://host/kv"
    assert table["project"]["optional-dependencies"]["server"]


def test_no_entry_of_the_changelog_and_its_lists_is_there_twice() -> None:
    pages = (ROOT / "CHANGELOG.md", ROOT / "docs" / "features.md", ROOT / "docs" / "history.md")
    text = "\n".join(page.read_text() for page in pages)
    first_lines = re.findall(r"^- (.*)$", text, re.MULTILINE)
    assert [line for line, times in Counter(first_lines).items() if times > 1] == []
