"""Give what PyPI shows the addresses of the repository: python .ci/published.py URL TAG.

It changes pyproject.toml and README.md in place, for a build of a release: nothing here knows where
the repository is, and PyPI resolves no relative link.
"""

import re
import sys
from pathlib import Path


def with_addresses(pyproject: str, url: str, tag: str) -> str:
    """Return pyproject.toml with the table of addresses."""
    table = f"""[project.urls]
Documentation = "{url}/blob/{tag}/docs/index.md"
Changelog = "{url}/blob/{tag}/CHANGELOG.md"
Source = "{url}"
Issues = "{url}/issues"

[project.optional-dependencies]"""
    return pyproject.replace("[project.optional-dependencies]", table, 1)


def with_absolute_links(page: str, url: str, tag: str) -> str:
    """Return a page of the top folder whose relative links lead to the files of a tag."""
    page = re.sub(r"(!\[[^\]]*\]\()(?!\w+:|#)([^)\s]+)", rf"\1{url}/raw/{tag}/\2", page)
    return re.sub(r"(\]\()(?!\w+:|#)([^)\s]+)", rf"\1{url}/blob/{tag}/\2", page)


if __name__ == "__main__":
    for name, change in (("pyproject.toml", with_addresses), ("README.md", with_absolute_links)):
        path = Path(name)
        path.write_text(change(path.read_text(), *sys.argv[1:]))
