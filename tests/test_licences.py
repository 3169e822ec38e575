"""docs/licences.md has each package that an installation of kvstream brings, and its licence."""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from kvstream.errors import DISTRIBUTION

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| ([\w.-]+) \| ([^|]+) \| ([^|]*) \|$", re.MULTILINE)
LISTED = {
    name: (licence, origins)
    for name, licence, origins in ROW.findall((ROOT / "docs" / "licences.md").read_text())
    if name != "package"
}
FAMILIES = ("Apache", "BSD", "GPL", "MIT", "MPL", "PSF")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(found: Distribution) -> str:
    """Return what the metadata of a package say of its licence."""
    told = found.metadata
    if "License-Expression" in told:
        return told["License-Expression"]
    classifiers = told.get_all("Classifier") or []
    named = " ".join(each for each in classifiers if each.startswith("License"))
    text: str = named or (told.get_all("License") or [""])[0][:100]
    return text.replace("Python Software Foundation", "PSF")


def needed(requirement: str, extra: str, seen: set[str]) -> Iterator[str]:
    """Yield the names of a requirement and of all that it needs, those seen before left out."""
    wanted = Requirement(requirement)
    name = normal(wanted.name)
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
        return
    if name in seen or name == DISTRIBUTION:
        return
    seen.add(name)
    yield name
    try:
        inner = distribution(name).requires or []
    except PackageNotFoundError:
        return  # of an extra that is not installed here: its own row is checked
    for each in inner:
        for extra_of in ("", *wanted.extras):
            yield from needed(each, extra_of, seen)


def brought() -> dict[str, set[str]]:
    """Return for each package what brings it: the name of an extra, or none for kvstream itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, set[str]] = {}
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    for extra, requirements in groups.items():
        seen: set[str] = set()
        for each in requirements:
            for name in needed(each, "", seen):
                found.setdefault(name, set()).add(extra)
    return found


def test_each_package_that_is_brought_has_a_row() -> None:
    found = brought()
    assert len(found) > 20
    assert sorted(found.keys() - LISTED.keys()) == []
    wrong = {
        name: sorted(origins)
        for name, origins in found.items()
        if LISTED[name][1] != "always" and not origins <= set(LISTED[name][1].split(", "))
    }
    assert wrong == {}


def test_each_row_has_the_licence_that_the_package_declares() -> None:
    wrong = {}
    for name, (licence, _) in LISTED.items():
        try:
            told = declared(distribution(name))
        except PackageNotFoundError:
            continue
        families = {each for each in FAMILIES if each in told}
        if families and not any(each in licence for each in families):
            wrong[name] = (licence, told)
    assert wrong == {}
