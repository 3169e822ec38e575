"""The reference of the library has every public class and function, and each has a docstring."""

import ast
import dataclasses
import doctest
import importlib
import importlib.util
import inspect
import itertools
import re
import runpy
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

import kvstream
from tests.library.test_surface import MODULES, module

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [page.read_text() for page in sorted((ROOT / "docs" / "reference").glob("*.md"))]
LISTED = re.findall(r"^\.\. auto\w+:: ([\w.]+)", "\n".join(PAGES), re.MULTILINE)
OF_FRAMEWORKS = "kvstream.adapters"
"""The members of its classes are those of the frameworks, which document them."""
_of_site = runpy.run_path(str(ROOT / "docs" / "site_parameters.py"))
PARAMETERS, undescribed = _of_site["PARAMETERS"], _of_site["undescribed"]
WITH_EXAMPLES = ("Group", "Queue", "Store", "StreamID")


def members(kind: type) -> list[tuple[str, Any]]:
    """Return the public methods and properties of a class that kvstream defines."""
    found = []
    for name in dir(kind):
        owner = next((each for each in kind.__mro__ if name in vars(each)), None)
        value = inspect.getattr_static(kind, name, None)
        is_call = callable(value) or isinstance(value, property | classmethod | staticmethod)
        if owner is not None and owner.__module__.startswith("kvstream") and is_call:
            found.append((name, value))
    return [(name, value) for name, value in found if not name.startswith("_")]


def value_of(name: str) -> Any:
    parent, _, last = name.rpartition(".")
    return getattr(importlib.import_module(parent), last)


@pytest.mark.parametrize("name", MODULES)
def test_the_reference_lists_what_a_public_module_shows(name: str) -> None:
    of_module = module(name)
    listed = [value_of(each) for each in LISTED if of(each, name)]
    for each in dir(of_module):
        value = getattr(of_module, each)
        if not each.startswith("_") and not inspect.ismodule(value):
            assert any(value is other for other in listed), f"{name}.{each}"


def of(listed: str, name: str) -> bool:
    """Tell whether a line of the reference may be about a name of a module, without importing."""
    parent = listed.rpartition(".")[0]
    return not parent.startswith((OF_FRAMEWORKS, "kvstream.spark")) or parent == name


def test_the_reference_lists_nothing_twice() -> None:
    assert LISTED
    assert sorted(LISTED) == sorted(set(LISTED))


@pytest.mark.parametrize("name", [each for each in MODULES if not each.startswith(OF_FRAMEWORKS)])
def test_every_public_class_function_and_method_has_a_docstring(name: str) -> None:
    of_module = module(name)
    for each in dir(of_module):
        value = getattr(of_module, each)
        if each.startswith("_") or not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        assert inspect.getdoc(value), f"{name}.{each}"
        for member, of_class in members(value) if inspect.isclass(value) else ():
            assert inspect.getdoc(of_class), f"{name}.{each}.{member}"


def described(function: Any, of_class: type | None = None) -> str:
    """Return the text that the reference has of a call; that of a class begins its own."""
    return f"{inspect.getdoc(function)} {inspect.getdoc(of_class) if of_class else ''}"


def calls(of_module: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield the public functions, methods and constructors of a module, with their texts."""
    for each in dir(of_module):
        value = getattr(of_module, each)
        if each.startswith("_"):
            continue
        if not inspect.isclass(value):
            yield each, value, described(value)
            continue
        init = value.__init__
        if inspect.isfunction(init) and init.__doc__ and not is_dataclass(value):
            yield f"{each}.__init__", init, described(init, value)
        for member, found in members(value):
            yield f"{each}.{member}", getattr(found, "__func__", found), described(found)


@pytest.mark.parametrize("name", [each for each in MODULES if not each.startswith(OF_FRAMEWORKS)])
def test_the_reference_describes_each_parameter(name: str) -> None:
    without = [
        f"{call}({parameter})"
        for call, function, text in calls(module(name))
        if inspect.isfunction(inspect.unwrap(function))
        and function.__module__.startswith("kvstream")
        for parameter in undescribed(inspect.unwrap(function), text)
        if parameter not in PARAMETERS
    ]
    assert without == []


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_class_do_what_they_show(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kind = getattr(kvstream, name)
    found = doctest.DocTestFinder(recurse=False).find(kind, name, globs={"kvstream": kvstream})
    assert any(each.examples for each in found)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for each in found:
        assert runner.run(each).failed == 0


def fields_of(kind: type) -> list[str]:
    """Return the public fields of a record: a NamedTuple or a dataclass; of others, none."""
    of_class = [each.name for each in dataclasses.fields(kind)] if is_dataclass(kind) else []
    hidden = getattr(kind, "_internal", ())
    named = getattr(kind, "_fields", of_class)
    return [name for name in named if not name.startswith("_") and name not in hidden]


def described_fields(kind: type) -> Iterator[str]:
    """Yield the fields that a text follows in the source, as Sphinx shows them."""
    for owner in kind.__mro__:
        if owner.__module__.startswith("kvstream"):
            (found,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
            assert isinstance(found, ast.ClassDef)
            for field, text in itertools.pairwise(found.body):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    yield ast.unparse(field.target)


def test_each_field_of_a_record_is_described() -> None:
    kinds = [value_of(each) for each in LISTED if not each.startswith(OF_FRAMEWORKS)]
    records = [kind for kind in kinds if inspect.isclass(kind) and fields_of(kind)]
    assert len(records) > 50
    without = {
        f"{kind.__qualname__}.{name}"
        for kind in records
        for name in set(fields_of(kind)) - set(described_fields(kind))
    }
    assert without == set()
