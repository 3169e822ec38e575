"""Signatures in the reference, for Sphinx: the links of their types, and their defaults.

A signature names a type as its module does (``Entry``, ``kvstream.types.records.Entry``); the
reference has it where users import it (``kvstream.Entry``).
"""

import ast
import inspect
import textwrap
from functools import cache
from importlib import import_module
from typing import Any, ClassVar

from docutils import nodes
from sphinx import addnodes
from sphinx.pycode import ModuleAnalyzer
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform

PUBLIC = ("kvstream", "kvstream.jobs", "kvstream.aio", "kvstream.inbox", "kvstream.migration")
"""Where a bare name is looked for, after the module that uses it."""
WITHOUT_PAGE = (
    r"(asyncio|collections|contextlib|datetime|enum|os|pathlib|types|typing|uuid|_uuid)\..+",
    r"(pa|pd|pl|pandas|polars|pyarrow|pyspark|redis|starlette)\..+",
    "Any|Async(Iterator|ContextManager)|Awaitable|Callable|Collection|Concatenate|Counter",
    "Iterable|Iterator|Literal|Mapping|Path(Like)?|Self|Sequence|Unpack|date|datetime|timedelta",
    "DataFrame|SparkSession|Request|Response",  # of Spark, of starlette
    r"signal\.Signals|(dict|tuple)\[\w+",
    # Of kvstream: what only its own modules make and take.
    r"(kvstream\.[\w.]+\.)?(AnyEngine|AnyJobs|Engine|Awaited|Behind|CarriedFunctions|Consent|Content)",
    r"(kvstream\.[\w.]+\.)?(CopiedState|CutoverTarget|Database|Decoder|Done|Follower|FollowerNote)",
    r"(kvstream\.[\w.]+\.)?(Minute|Mismatch|NodeImage|Outline|PackedID|Page|Shown|Plan|Server|StreamState|Table)",
    r"(\w+\.)*(F_co|P|P\.args|P\.kwargs|R|R_co|S|T)",  # variables of types
)
"""Types of Python and of other packages, whose pages are not asked for: a build has no network."""

Constant = bool | int | float | str | bytes | tuple


@cache
def find(target: str) -> Any:
    """Return the object with a dotted name; None if there is none."""
    module, _, name = target.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return None


def documented(target: str, within: str, names: dict[str, list[str]]) -> str | None:
    """Return the name under which the reference has a type; None if it has not.

    ``names`` has the types of the reference by the last part of their names.
    """
    last = target.rpartition(".")[2]
    found = names.get(last, [])
    if target in found or not found:
        return target if found else None
    if "." not in target:
        near = (f"{module}.{last}" for module in (within, *PUBLIC))
        return next((name for name in near if name in found), found[0])
    wanted = find(target)
    return next((name for name in found if wanted is not None and find(name) is wanted), None)


class PublicNames(SphinxPostTransform):
    """Give each reference to a type the name under which the reference has that type."""

    default_priority = 5
    """Before Sphinx's resolver, whose own search for a bare name finds too many."""
    names: ClassVar[dict[str, list[str]]] = {}

    def run(self, **_: Any) -> None:
        if not self.names:
            for name, entry in self.env.domains["py"].objects.items():  # type: ignore[attr-defined]
                if entry.objtype in ("class", "exception", "type"):
                    self.names.setdefault(name.rpartition(".")[2], []).append(name)
        for node in self.document.findall(addnodes.pending_xref):
            if node.get("refdomain") == "py":
                node.attributes.pop("refspecific", None)  # as found, or not at all
                name = documented(node["reftarget"], node.get("py:module") or "", self.names)
                node["reftarget"] = name or node["reftarget"]


class TitlesWithoutFiles(SphinxTransform):
    """Replace a link to a file in a title by its text: Sphinx's list of contents takes none."""

    default_priority = 600

    def apply(self, **_: Any) -> None:
        for title in self.document.findall(nodes.title):
            for link in list(title.findall(addnodes.download_reference)):
                link.replace_self(link.children)


def plain(annotation: ast.expr | None) -> str:
    """Return the text of an annotation, without quotes around all of it."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return "" if annotation is None else ast.unparse(annotation)


def written(function: Any, bound: bool) -> tuple[str, str]:
    """Return the parameters and the result of a function as its source has them.

    Evaluated, an alias such as FieldsLike would be shown as the union that it stands for.
    """
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    args = tree.args
    if bound:
        del (args.posonlyargs or args.args)[0]
    for each in ast.walk(args):
        if isinstance(each, ast.arg) and each.annotation is not None:
            each.annotation = ast.parse(plain(each.annotation), mode="eval").body
    values = inspect.unwrap(function).__globals__
    args.defaults = [shown(each, values) for each in args.defaults]
    args.kw_defaults = [each and shown(each, values) for each in args.kw_defaults]
    return f"({ast.unparse(args)})", plain(tree.returns)


def shown(default: ast.expr, values: dict[str, Any]) -> ast.expr:
    """Return a default as readers know it: the value of a constant in place of its name."""
    value = values.get(default.id) if isinstance(default, ast.Name) else None
    return ast.parse(repr(value), mode="eval").body if isinstance(value, Constant) else default


def sign(
    _app: Any, what: str, _name: str, value: Any, _options: Any, args: str | None, _returned: str
) -> tuple[str, str] | None:
    """Return the signature to show; None leaves it to autodoc."""
    module = inspect.getmodule(value)
    if module is not None and module.__name__.startswith("kvstream"):
        analyzer = ModuleAnalyzer.for_module(module.__name__)
        analyzer.analyze()
        analyzer.overloads.clear()  # one signature for all
    if args is None:
        return None
    if what in ("class", "exception"):
        return constructor(value)
    if what not in ("function", "method") or not inspect.isroutine(value):
        return None
    function = getattr(value, "__func__", value)
    static = what == "function" or isinstance(value, staticmethod)
    return written(function, not static) if inspect.isfunction(function) else None


def constructor(kind: Any) -> tuple[str, str] | None:
    """Return the parameters of a class: none if only kvstream makes it, so __init__ has no text."""
    init = kind.__init__
    if not (init.__module__ or "").startswith("kvstream") if inspect.isfunction(init) else True:
        return None if issubclass(kind, tuple) else ("", "")
    if "__dataclass_fields__" in vars(kind):
        return None
    return (written(init, True)[0], "") if (init.__doc__ or "").strip() else ("", "")


def indent_example(
    _app: Any, _what: str, _name: str, _value: Any, _options: Any, lines: list[str]
) -> None:
    """Indent an example that follows the first line: all lines but the first are dedented.

    The text that Python gives each field of a NamedTuple is left out.
    """
    if lines and lines[0].startswith("Alias for field number"):
        del lines[0]
    if lines and lines[0].endswith("::"):
        code = [line for line in lines[1:] if line]
        if code and code[0][0] != " ":
            lines[1:] = [f"    {line}" if line else "" for line in lines[1:]]


def setup(app: Any) -> dict[str, Any]:
    app.add_post_transform(PublicNames)
    app.add_transform(TitlesWithoutFiles)
    app.connect("autodoc-process-signature", sign)
    app.connect("autodoc-process-docstring", indent_example)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
