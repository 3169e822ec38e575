"""The settings of the site: `make docs` builds it with Sphinx from the pages of this repository.

The source folder is the root of the repository, so that the relative links between design.md,
CHANGELOG.md and docs/ lead to the same places here and on a web view of the repository.
"""

import sys
from logging import getLogger
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.dont_write_bytecode = True  # docs/ has text alone
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from site_references import WITHOUT_PAGE  # noqa: E402

from kvstream.version import VERSION  # noqa: E402

project = "kvstream"
author = "the authors of kvstream"
project_copyright = "the authors of kvstream"
version = release = VERSION

root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    *("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"),
    *("design.md", "examples/README.md"),
]
exclude_patterns = [
    *("bench", "build", "cli", "demo", "dist", "kvstream", "meta", "tests"),
    *(".*", "docs/_build"),
]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "site_index",
    "site_parameters",
    "site_references",
]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block"]

nitpicky = True
# The index names folders by globs, and some may have no page yet; Sphinx has no setting for it.
_of_toctree = getLogger("sphinx.sphinx.directives.other")
_of_toctree.addFilter(lambda record: "didn't match" not in record.msg)
nitpick_ignore_regex = [("py:.*", names) for names in WITHOUT_PAGE]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autoclass_content = "both"  # what the constructor takes, too
INHERITED_FROM_OTHERS = (
    "BaseException, Exception, IntEnum, KVStreamError, StrEnum, bytes, dict, int, object, str, "
    "tuple"
)
autodoc_default_options = {
    "members": True,
    "undoc-members": True,  # fields, whose names and types say enough
    "inherited-members": INHERITED_FROM_OTHERS,
}
autodoc_mock_imports = ["pandas", "pyspark"]  # large, and not read from
python_use_unqualified_type_names = True
add_module_names = False
maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"kvstream {VERSION}"
html_extra_path = ["site"]  # the index of the site leads to that of docs/
html_copy_source = False
html_show_sphinx = False


def setup(app: Any) -> dict[str, Any]:
    """Tell Sphinx that pages may be read by several processes."""
    return {"parallel_read_safe": True, "parallel_write_safe": True}
