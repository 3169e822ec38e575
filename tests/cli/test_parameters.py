"""IDs, times, durations and names: the accepted forms, and the errors of others."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kvstream import StreamID, SystemClock
from kvstream.cli import main
from kvstream.cli.parameters import (
    ID,
    AddID,
    Count,
    Duration,
    Field,
    Moment,
    Name,
    OldestID,
    PathOnly,
    Position,
    RangeBound,
)
from kvstream.types.ids import U64_MAX, duration_ms, time_ms

MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("10s", 10_000), ("1.5h", 5_400_000), ("2", 2000), ("7d", 604_800_000)],
)
def test_durations_have_units_and_are_seconds_without(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "s", "-5s", "5 s", "5w", "1e3"])
def test_other_durations_are_refused(text: str) -> None:
    assert duration_ms(text) is None


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2023-11-14T22:13:20", MS),
        ("2023-11-14 22:13:20.123Z", MS + 123),
        ("2023-11-14T23:13:20+01:00", MS),
        ("2023-11-14", 1_699_920_000_000),
        ("1969-12-31", -86_400_000),
        ("tomorrow", None),
        ("now-", None),
        ("now-5x", None),
    ],
)
def test_times_are_utc_by_default(text: str, ms: int | None) -> None:
    assert time_ms(text) == ms


def test_times_may_be_relative_to_now() -> None:
    before = SystemClock().now_ms()
    now, earlier = time_ms("now"), time_ms("now-15m")
    assert now is not None
    assert earlier is not None
    assert before <= now <= SystemClock().now_ms()
    assert abs(now - earlier - 900_000) < 10_000


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (ID(), "5", StreamID(5, 0)),
        (ID(), "5-7", StreamID(5, 7)),
        (AddID(), "*", "*"),
        (AddID(), "5-*", "5-*"),
        (RangeBound(), "-", "-"),
        (RangeBound(), "(5-7", "(5-7"),
        (RangeBound(), "2023-11-14T22:13:20Z", str(MS)),
        (RangeBound(), "(2023-11-14T22:13:20Z", f"({MS}"),
        (Position(), "$", "$"),
        (Position(), "5-7", StreamID(5, 7)),
        (Position(), "2023-11-14T22:13:20Z", StreamID(MS - 1, U64_MAX)),
        (Position(), "1970-01-01", StreamID(0, 0)),
        (OldestID(), "5-7", StreamID(5, 7)),
        (OldestID(), "2023-11-14T22:13:20Z", StreamID(MS, 0)),
        (Duration(), "250ms", 0.25),
        (Moment(), "2023-11-14T22:13:20Z", MS / 1000),
        (Field(), "a=b=c", (b"a", b"b=c")),
        (Field(), "=", (b"", b"")),
        (Field(), "\udcff=\udcfe", (b"\xff", b"\xfe")),
        (Name(), "na\udcffme", b"na\xffme"),
        (Name(), b"raw", b"raw"),
        (Count(1), "7", 7),
        (Count(1), "9" * 30, 2**59 - 1),
    ],
)
def test_arguments_are_converted_for_the_library(
    kind: "click.ParamType[object]", text: object, value: object
) -> None:
    assert kind.convert(text, None, None) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ID(), "x"),
        (ID(), "5-6-7"),
        (ID(), "2023-11-14T22:13:20Z"),
        (AddID(), "5-*-"),
        (RangeBound(), "(-"),
        (RangeBound(), "soon"),
        (Position(), "+"),
        (Position(), "soon"),
        (OldestID(), "$"),
        (Duration(), "soon"),
        (Moment(), "soon"),
        (Field(), "no sign"),
    ],
)
def test_an_invalid_argument_is_a_usage_error_that_names_it(
    kind: "click.ParamType[object]", text: str
) -> None:
    with pytest.raises(click.BadParameter, match=re.escape(text)):
        kind.convert(text, None, None)


@pytest.mark.parametrize("text", ["redis://h", "file:///a", "s3://b", 5])
def test_a_path_is_no_url_and_no_number(text: object) -> None:
    with pytest.raises(click.BadParameter, match=r"\.\.\. is |5 is not a path"):
        PathOnly().convert(text, None, None)


def test_every_path_of_the_program_is_of_the_type_that_refuses_urls() -> None:
    def of(command: click.Command, name: str) -> list[str]:
        inner = command.commands.items() if isinstance(command, click.Group) else ()
        found = [found for word, each in inner for found in of(each, f"{name} {word}")]
        paths = [each for each in command.params if isinstance(each.type, click.Path)]
        assert all(type(each.type) is PathOnly for each in paths), name
        return found + [f"{name} {each.opts[0]}" for each in paths]

    paths = of(main, "kvstream")
    assert "kvstream --store" in paths
    assert "kvstream serve --dir" in paths
    assert "kvstream checkpoint target" in paths


def test_a_store_and_a_server_are_not_confused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def refusal(**env: str) -> str:
        named: dict[str, str | None] = {"KVSTREAM_STORE": None, "KVSTREAM_URL": None, **env}
        result = CliRunner().invoke(main, ["add", "orders", "a=1"], env=named)
        assert result.exit_code in (1, 2)
        return result.stderr

    assert "on the command line --url (KVSTREAM_URL)" in refusal(KVSTREAM_STORE="redis://localhost")
    assert "a directory is given as --store" in refusal(KVSTREAM_URL=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_ids_and_times_that_are_values_already_are_unchanged() -> None:
    eid = StreamID(1, 2)
    for kind in (ID(), Position(), OldestID()):
        assert kind.convert(eid, None, None) is eid
    assert Moment().convert(MS / 1000, None, None) == MS / 1000
