"""llms.txt: all pages of the site as one list of plain text, for programs that read it.

# kvstream
## CAPTION
- [TITLE](PATH.html)
"""

from pathlib import Path
from typing import Any

from sphinx import addnodes


def lines(app: Any) -> list[str]:
    """Return the lines of the list, in the order of the index."""
    env = app.env
    found = [
        "# kvstream",
        "",
        "> Durable streams, queues and jobs in a Python process, on RocksDB.",
    ]

    def list_page(name: str) -> None:
        title = env.titles[name].astext()
        found.append(f"- [{title}]({app.builder.get_target_uri(name)})")
        for below in env.toctree_includes.get(name, ()):
            list_page(below)

    for tree in env.get_doctree(env.config.root_doc).findall(addnodes.toctree):
        found.extend(["", f"## {tree['caption']}", ""])
        for _title, name in tree["entries"]:
            list_page(name)
    return found


def write(app: Any, error: Exception | None) -> None:
    """Write llms.txt beside the pages, once they are built."""
    if error is None and app.builder.format == "html":
        Path(app.outdir, "llms.txt").write_text("\n".join(lines(app)) + "\n")


def setup(app: Any) -> dict[str, Any]:
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
