"""The public names of the package, and the printed examples."""

import ast
import importlib.resources
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvstream
from kvstream import DeletedEntry, Entry, KVStreamError, StreamID

ROOT = Path(kvstream.__file__).resolve().parent.parent


def test_a_star_import_has_exactly_the_listed_names() -> None:
    namespace: dict[str, object] = {}
    exec("from kvstream import *", namespace)
    del namespace["__builtins__"]
    assert set(namespace) == set(kvstream.__all__)
    assert len(set(kvstream.__all__)) == len(kvstream.__all__)
    assert [*kvstream.__all__] == sorted(kvstream.__all__)


def test_names_imported_at_their_first_use_are_those_that_type_checkers_see() -> None:
    (block,) = (
        node
        for node in ast.parse(Path(kvstream.__file__).read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in kvstream.__all__
    }
    assert seen == {name: f"kvstream.{module}" for name, module in kvstream._MODULES.items()}
    assert all(getattr(kvstream, name) is not None for name in kvstream.__all__)
    assert set(kvstream.__all__) <= set(dir(kvstream))
    with pytest.raises(AttributeError, match="module 'kvstream' has no attribute 'Strem'"):
        kvstream.Strem  # noqa: B018


def test_the_package_is_marked_as_typed_and_has_its_version() -> None:
    assert importlib.resources.files("kvstream").joinpath("py.typed").is_file()
    assert re.fullmatch(r"\d+\.\d+\.\d+", kvstream.__version__)


def errors_of(kind: type[KVStreamError]) -> Iterator[type[KVStreamError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from errors_of(child)


def test_every_error_is_public_and_has_its_redis_code() -> None:
    errors = {kind for kind in errors_of(KVStreamError) if kind.__module__ == "kvstream.errors"}
    assert {error.__name__ for error in errors} <= set(kvstream.__all__)
    codes = {error.__name__: error.code for error in errors}
    assert set(codes.values()) == {
        "ERR",
        "BUSYKEY",
        "WRONGTYPE",
        "NOGROUP",
        "NOLOAD",
        "BUSYGROUP",
        "LEASELOST",
        "UNBLOCKED",
        "MISCONF",
        "READONLY",
    }
    assert codes["NoGroup"] == "NOGROUP"
    for error in errors - {kvstream.BadPayload}:  # names a place, as its own tests show
        one = error("what happened")
        assert (str(one), one.reply) == ("what happened", f"{error.code} what happened")


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (kvstream.InvalidArgument, ValueError),
        (kvstream.InvalidID, ValueError),
        (kvstream.NoSuchKey, KeyError),
        (kvstream.WrongType, TypeError),
    ],
)
def test_errors_derive_from_python_s_errors(
    error: type[KVStreamError], builtin: type[Exception]
) -> None:
    assert issubclass(error, builtin)


def test_the_readable_parts_of_the_library_have_docstrings() -> None:
    for kind in (kvstream.Store, kvstream.Stream, kvstream.Group, kvstream.Consumer):
        assert kind.__doc__
        methods = [
            member
            for name, member in vars(kind).items()
            if callable(member) and not name.startswith("_")
        ]
        undocumented = [method.__name__ for method in methods if not method.__doc__]
        assert set(undocumented) <= {"exists"}


def test_results_cannot_be_changed() -> None:
    entry = Entry(StreamID(1, 0), {b"a": b"1"})
    with pytest.raises(AttributeError):
        entry.id = StreamID(2, 0)  # type: ignore[misc]
    assert (entry.flat, entry.pairs) == ((b"a", b"1"), ((b"a", b"1"),))
    gone = DeletedEntry(StreamID(1, 0))
    assert (gone.fields, gone.flat, gone.pairs) == (None, (), ())


# --- printed examples ---------------------------------------------------------------------------


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


def examples() -> list[str]:
    """Return the examples of the library; tests/test_readme.py runs those of the server too.

    tests/remote runs the one on a server, tests/arrow those with tables.
    """
    readme = [block for block in blocks("README.md") if "from kvstream import" in block]
    elsewhere = re.compile("://|import duckdb")
    return [*readme, *(each for each in blocks("docs/library.md") if not elsewhere.search(each))]


def test_the_pages_have_examples() -> None:
    assert len(examples()) >= 4


@pytest.mark.usefixtures("working_directory")
@pytest.mark.parametrize("example", examples())
def test_an_example_runs_as_printed(example: str) -> None:
    exec(compile(example, "example", "exec"), {})
