"""The texts of parameters in the reference, for Sphinx.

A parameter of which a docstring does not speak gets the text of its name in
docs/reference/parameters.md. A test holds that every public parameter has a text.
"""

import inspect
import re
from pathlib import Path
from typing import Any

PARAMETERS = dict(
    re.findall(
        r"^\| `(\w+)` \| (.+) \|$",
        (Path(__file__).parent / "reference" / "parameters.md").read_text(),
        re.MULTILINE,
    )
)
"""The texts of parameters that mean the same in every call, by their names."""


def undescribed(function: Any, text: str) -> list[str]:
    """Return the parameters of a function that a text does not speak of."""
    names = [each for each in inspect.signature(function).parameters if each not in ("self", "cls")]
    return [each for each in names if not re.search(rf"\b{each}\b", text)]


def describe(
    _app: Any, _what: str, _name: str, value: Any, _options: Any, lines: list[str]
) -> None:
    """Add the texts of parameters to a docstring that does not speak of them."""
    text = "\n".join(lines)
    if inspect.isclass(value):
        function = value.__init__
        of_call = inspect.getdoc(function) if inspect.isfunction(function) else None
        if not of_call or text.strip().split("\n")[0] != of_call.split("\n")[0]:
            return  # it describes the class; that of its constructor follows
        text += inspect.getdoc(value) or ""
    else:
        function = inspect.unwrap(getattr(value, "__func__", value))
    if inspect.isfunction(function):
        known = [each for each in undescribed(function, text) if each in PARAMETERS]
        if known:
            texts = [f":param {each}: {PARAMETERS[each]}".replace("`", "``") for each in known]
            lines += ["", *texts, ""]


def setup(app: Any) -> dict[str, Any]:
    app.connect(
        "autodoc-process-docstring", describe, priority=600
    )  # after its first line is mended
    return {"parallel_read_safe": True, "parallel_write_safe": True}
