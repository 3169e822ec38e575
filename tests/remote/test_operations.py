"""Each operation that the library calls has one record, which says how a server does it."""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import kvstream
from kvstream.commands.table import find
from kvstream.meta.txn import Txn
from kvstream.remote.call import Effect
from kvstream.remote.operations import OPERATIONS, SINCE, needs_of

FACES = [
    *(f"kvstream.{path.stem}" for path in Path(kvstream.__file__).parent.glob("[!_]*.py")),
    *("kvstream.arrow", "kvstream.jobs", "kvstream.adapters", "kvstream.engine.blocking_reads"),
    "kvstream.remote.procedures",
]
"""The modules and packages whose objects call an engine of any kind, or of a server."""


def modules_of(name: str) -> Iterator[str]:
    """Yield a module, and those of a package."""
    yield name
    folder: Any = getattr(import_module(name), "__path__", None)
    for path in sorted(Path(folder[0]).rglob("*.py")) if folder else ():
        if path.stem != "__init__":
            yield ".".join((name, *path.relative_to(folder[0]).with_suffix("").parts))


def is_operation(value: Any) -> bool:
    """Return whether a value is a function of kvstream.operations that takes a transaction."""
    if not inspect.isfunction(value) or not value.__module__.startswith("kvstream.operations."):
        return False
    first = next(iter(inspect.signature(value).parameters.values()), None)
    return first is not None and first.annotation in (Txn, "Txn")


def named_in(tree: ast.AST, names: dict[str, Any]) -> Iterator[Callable[..., Any]]:
    """Yield the operations that code names, as ``f`` or ``module.f``, and does not call.

    What ``store.engine.run`` gets is left out: this property exists for a directory alone.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".engine.run"):
            continue
        if isinstance(tree, ast.Call) and node is tree.func:
            continue
        value: Any = None
        if isinstance(node, ast.Name):
            value = names.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            value = getattr(names.get(node.value.id), node.attr, None)
        if is_operation(value):
            yield value
        yield from named_in(node, names)


def operations_of(module: str) -> set[Callable[..., Any]]:
    tree = ast.parse(inspect.getsource(import_module(module)))
    return set(named_in(tree, vars(sys.modules[module])))


def test_each_operation_that_the_library_calls_has_a_record() -> None:
    pytest.importorskip("pyarrow")
    called: set[Callable[..., Any]] = set()
    for face in FACES:
        for module in modules_of(face):
            called |= operations_of(module)
    missing = {f"{each.__module__}.{each.__name__}" for each in called - OPERATIONS.keys()}
    assert missing == set()
    assert len(called) > 60
    unused = {each for each in OPERATIONS.keys() - called if inspect.isfunction(each)}
    assert {each.__name__ for each in unused} == set()


def test_a_record_has_a_call_or_steps() -> None:
    for record in OPERATIONS.values():
        assert record.call or record.steps
        assert not (record.immediate and record.effect is Effect.READ)


def test_what_a_server_must_have_follows_from_the_words() -> None:
    for name, version in SINCE.items():
        assert find([name.encode()] + [b"x"] * 9).since.startswith(version)
    add = ("XADD", b"s", "IDMP", b"p", b"i", "DELREF", "MAXLEN", "=", 5, "*", b"CLAIM", b"MAXSIZE")
    assert needs_of([add, ("XLEN", b"IDMP")]) == {"IDMP": "8.6", "DELREF or ACKED": "8.2"}
    assert needs_of([("XDELEX", b"s", "DELREF", "IDS", 1, "1-0")]) == {"XDELEX": "8.2"}
    assert needs_of([("KVSTREAM.ADD", b"s", "*", b"IDMP", b"1")]) == {"KVSTREAM.ADD": ""}


def test_a_range_is_counted_by_the_nodes_of_a_server(url: str) -> None:
    with kvstream.open(url) as store:
        stream = store.stream("s")
        stream.add_many([{"n": n} for n in range(1, 9)], ids=[f"{n}-0" for n in range(1, 9)])
        connection: Any = store._engine.connection()  # type: ignore[attr-defined]
        connection.do("CONFIG", "RESETSTAT")
        assert stream.count("2-0", "5-0") == 4
        assert stream.count_after("2-0") == 6
        assert {"cmdstat_kvstream.count"} == {
            name for name in connection.info("commandstats") if "config" not in name
        }
