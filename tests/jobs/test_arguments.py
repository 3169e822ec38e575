"""Arguments of jobs: each is restored exactly, or refused when the job is enqueued."""

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import pytest

from kvstream.jobs.arguments import Signature, codec_of, digest, pack, unpack


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


class Point(NamedTuple):
    x: int
    y: float


class Options(TypedDict, total=False):
    size: int
    when: date


@dataclass
class Address:
    street: str
    number: int


@dataclass
class Person:
    name: str
    born: date
    addresses: list[Address] = field(default_factory=list)
    boss: "Person | None" = None


PLAIN = {"a": [1, 2.5, None, True, "x"], "b": {"c": []}}
VALUES = [
    (Any, PLAIN),
    (int, 1 << 60),
    (float, 2),
    (str, "ä\0"),
    (bytes, b"\x00\xff"),
    (UUID, UUID(int=7)),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 6, UTC)),
    (date, date(2026, 1, 2)),
    (time, time(3, 4, 5)),
    (timedelta, timedelta(days=-3, microseconds=1)),
    (Decimal, Decimal("1.10")),
    (Path, Path("a/b")),
    (Colour, Colour.BLUE),
    (UUID | None, None),
    (UUID | None, UUID(int=1)),
    (int | str, "7"),
    (Literal["a", 1], 1),
    (Annotated[Decimal, "unit"], Decimal(3)),
    (list[UUID], [UUID(int=1), UUID(int=2)]),
    (tuple[int, ...], (1, 2, 3)),
    (tuple[int, bytes], (1, b"x")),
    (set[date], {date(2026, 1, 2)}),
    (frozenset[str], frozenset({"a"})),
    (dict[str, Decimal], {"a": Decimal(1)}),
    (dict[int, str], {1: "a"}),
    (dict[UUID, list[bytes]], {UUID(int=1): [b"x"]}),
    (Point, Point(1, 2.0)),
    (Options, {"size": 1, "when": date(2026, 1, 2)}),
    (Options, {}),
    (
        Person,
        Person("ann", date(2000, 1, 2), [Address("a", 1)], Person("bob", date(1970, 1, 1))),
    ),
]


@pytest.mark.parametrize("form", ["json", "msgpack"])
@pytest.mark.parametrize(("hint", "value"), VALUES, ids=str)
def test_a_value_is_restored_with_its_type(hint: Any, value: Any, form: str) -> None:
    codec = codec_of(hint)
    again = codec.load(unpack(pack(codec.dump(value), form), form))
    assert again == value
    if hint is not float:
        assert type(again) is type(value)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Any, (1, 2)),
        (Any, {1: 2}),
        (Any, b"x"),
        (Any, UUID(int=1)),
        (int, "1"),
        (int, True),
        (str, 1),
        (bytes, "x"),
        (date, datetime(2026, 1, 2, tzinfo=UTC)),
        (list[int], ["a"]),
        (tuple[int, int], (1,)),
        (Literal["a"], "b"),
        (UUID | str, "00000000-0000-0000-0000-000000000001"),
        (Address, {"street": "a", "number": 1}),
        (Address, Address("a", "b")),  # type: ignore[arg-type]
        (Options, {"sise": 1}),
        (Colour, "red"),
    ],
    ids=str,
)
def test_a_value_that_would_be_restored_as_another_is_refused(hint: Any, value: Any) -> None:
    with pytest.raises(TypeError):
        codec_of(hint).dump(value)


def test_an_instance_of_a_subclass_is_refused() -> None:
    class Villa(Address):
        pass

    with pytest.raises(TypeError):
        codec_of(Address).dump(Villa("a", 1))


def test_the_error_for_an_unsupported_class_names_an_alternative() -> None:
    with pytest.raises(TypeError, match="Connection cannot be stored: use a dataclass"):
        codec_of(type("Connection", (), {}))


def test_pydantic_models_are_validated_when_restored() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Order", sku=(str, ...), at=(datetime, ...))
    codec = codec_of(model)
    order = model(sku="a", at=datetime(2026, 1, 2, tzinfo=UTC))
    assert codec.load(unpack(pack(codec.dump(order), "json"), "json")) == order
    with pytest.raises(ValueError, match="sku"):
        codec.load({})


def test_pydantic_models_with_aliases_and_computed_fields_come_back() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Line(pydantic.BaseModel):  # type: ignore[name-defined, misc]
        model_config = pydantic.ConfigDict(extra="forbid")
        sku: str = pydantic.Field(alias="SKU")
        count: int = pydantic.Field(validation_alias="n", serialization_alias="number")

        @pydantic.computed_field  # type: ignore[prop-decorator, untyped-decorator]
        @property
        def label(self) -> str:
            return f"{self.count} {self.sku}"

    class Order(pydantic.BaseModel):  # type: ignore[name-defined, misc]
        lines: list[Line]

    class Gift(Order):
        to: str

    codec, order = codec_of(Order), Order(lines=[Line(SKU="a", n=2)])
    assert codec.load(unpack(pack(codec.dump(order), "json"), "json")) == order
    with pytest.raises(TypeError, match="is not a Order"):
        codec.dump(Gift(lines=[], to="ann"))


def test_equal_arguments_have_one_digest() -> None:
    dump = codec_of(set[str]).dump
    assert dump({"b", "a", "c"}) == dump({"c", "b", "a"}) == ["a", "b", "c"]
    assert digest({"a": 1, "b": b"x"}) == digest({"b": b"x", "a": 1}) != digest({"a": 1})


def mail(to: str, *, when: datetime | None = None, copies: list[str] = []) -> None: ...  # noqa: B006


def star(first: UUID, *rest: int, **named: Decimal) -> None: ...


def placed(a: int, /, b: int = 2) -> None: ...


def test_arguments_are_stored_by_name_if_the_function_accepts_names() -> None:
    assert Signature(mail).dump(("a",), {"copies": ["b"]}) == [[], {"to": "a", "copies": ["b"]}]
    assert Signature(placed).dump((1, 3), {}) == [[1], {"b": 3}]


def test_arguments_with_stars_come_back() -> None:
    signature = Signature(star)
    args, kwargs = (UUID(int=1), 2, 3), {"x": Decimal(4)}
    assert signature.load(unpack(pack(signature.dump(args, kwargs), "json"), "json")) == (
        args,
        kwargs,
    )
    assert signature.load(signature.dump((UUID(int=1),), {})) == ((UUID(int=1),), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "missing a required argument: 'to'"),
        (("a", "b"), {}, "too many positional arguments"),
        (("a",), {"cc": 1}, "unexpected keyword argument 'cc'"),
        ((1,), {}, "argument 'to' of mail: 1 is not str"),
    ],
)
def test_arguments_that_do_not_fit_are_a_type_error(args: Any, kwargs: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        Signature(mail).dump(args, kwargs)


def test_the_version_changes_only_with_the_signature() -> None:
    def one(a: int) -> int:
        return a

    def two(a: int) -> int:
        return a + 1

    def three(a: int, b: int = 1) -> int:
        return a

    def four(a: str) -> str:
        return a

    versions = [Signature(each).version for each in (one, two, three, four)]
    assert versions[0] == versions[1]
    assert len(set(versions)) == 3


@pytest.mark.parametrize(("form", "value"), [("msgpack", 1 << 70), ("json", "\ud800")])
def test_values_unfit_for_the_format_are_a_type_error(form: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"{form} cannot hold the value"):
        pack([value], form)


def test_none_is_a_result_whatever_the_hint() -> None:
    def send(to: str) -> str: ...  # type: ignore[empty-body]

    signature = Signature(send)
    assert signature.dump_result(None) is None
    assert signature.load_result(None) is None
    with pytest.raises(TypeError, match="1 is not str"):
        signature.dump_result(1)
