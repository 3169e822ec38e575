"""Links from signatures to the reference, for Sphinx: a type is found by its name.

A signature names a type as its module does (``Entry``, ``kvstream.types.records.Entry``); the
reference has it where users import it (``kvstream.Entry``).
"""

import ast
import inspect
import textwrap
from functools import cache
from importlib import import_module
from typing import Any

from sphinx import addnodes
from sphinx.pycode import ModuleAnalyzer
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
    r"(kvstream\.[\w.]+\.)?(Minute|Mismatch|NodeImage|Outline|PackedID|Page|Plan|Server|StreamState|Table)",
    r"(\w+\.)*(F_co|P|P\.args|P\.kwargs|R|R_co|S|T)",  # variables of types
)
"""Types of Python and of other packages, whose pages are not asked for: a build has no network."""


@cache
def find(target: str) -> Any:
    """Return the object with a dotted name; None if there is none."""
    module, _, name = target.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return None


def documented(target: str, within: str, objects: dict[str, Any]) -> str | None:
    """Return the name under which the reference has a type; None if it has not."""
    last = target.rpartition(".")[2]
    if target in objects:
        return target
    if "." not in target:
        names = (f"{module}.{last}" for module in (within, *PUBLIC))
        return next((name for name in names if name in objects), None)
    wanted = find(target)
    same = (
        name
        for name in objects
        if wanted is not None and name.rpartition(".")[2] == last and find(name) is wanted
    )
    return next(same, None)


class PublicNames(SphinxPostTransform):
    """Give each reference to a type the name under which the reference has that type."""

    default_priority = 5
    """Before Sphinx's resolver, whose own search for a bare name finds too many."""

    def run(self, **_: Any) -> None:
        objects = self.env.domains["py"].objects  # type: ignore[attr-defined]
        for node in self.document.findall(addnodes.pending_xref):
            if node.get("refdomain") == "py":
                name = documented(node["reftarget"], node.get("py:module") or "", objects)
                node["refspecific"] = False
                node["reftarget"] = name or node["reftarget"]


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
    return f"({ast.unparse(args)})", plain(tree.returns)


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
    """Indent an example that follows the first line: all lines but the first are dedented."""
    if lines and lines[0].endswith("::"):
        code = [line for line in lines[1:] if line]
        if code and code[0][0] != " ":
            lines[1:] = [f"    {line}" if line else "" for line in lines[1:]]


def setup(app: Any) -> dict[str, Any]:
    app.add_post_transform(PublicNames)
    app.connect("autodoc-process-signature", sign)
    app.connect("autodoc-process-docstring", indent_example)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
