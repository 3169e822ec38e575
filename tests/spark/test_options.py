"""Options by name: unknown ones are refused, Kafka's are translated, an old name works."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvstream.errors import InvalidArgument
from kvstream.spark.jobs import verify
from kvstream.spark.options import (
    OPTIONS,
    Place,
    after_id,
    check_names,
    duration_s,
    first_id,
    flag,
    last_id,
    number,
    patterns,
    places,
)
from kvstream.spark.source import KVStreamSource
from tests.spark.conftest import ROOT, Read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = (ROOT / "docs" / "spark.md").read_text()
UNKNOWN = {
    "streams": "there is no option 'streams': did you mean 'stream'?",
    "maxEntriesPerTriger": "did you mean 'maxEntriesPerTrigger'?",
    "startingID_": "did you mean 'startingId'?",
    "inferSchema": "there is no option 'inferschema': docs/spark.md lists all",
    "kafka.bootstrap.servers": "use url (a server) or path",
    "subscribe": "the option subscribe is of Spark's Kafka source: use stream",
    "subscribePattern": "use match (a pattern as KEYS takes it, not a regular expression)",
    "assign": "use stream",
    "topic": "use stream",
    "startingOffsets": "use startingId in a streaming read, start in a batch read",
    "endingOffsets": "use end",
    "maxOffsetsPerTrigger": "the option maxOffsetsPerTrigger is of Spark's Kafka source: "
    "use maxEntriesPerTrigger",
    "minOffsetsPerTrigger": "use minEntriesPerTrigger",
    "minPartitions": "use partitions",
    "kafka.group.id": "use group",
    "kafka.security.protocol": "has no equal here: leave it out",
    "includeHeaders": "has no equal here: leave it out",
    "fetchOffset.numRetries": "has no equal here: leave it out",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_option_is_refused_with_a_suggestion(name: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(UNKNOWN[name])):
        KVStreamSource({name.lower(): "x"})


def test_options_added_by_spark_are_accepted() -> None:
    names = ("checkpointLocation", "queryName", "owner", "provider", "option.path")
    check_names(dict.fromkeys((*names, *set(OPTIONS) - {"pattern"}), ""))


def test_a_read_and_a_write_of_an_unknown_option_fail_in_spark(
    spark: "SparkSession", read: Read, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="use maxEntriesPerTrigger"):
        read(path=tmp_path, stream="s", maxOffsetsPerTrigger=5)
    with pytest.raises(Exception, match="use stream"):
        spark.range(1).write.format("kvstream").mode("append").options(topic="s").save()


def test_the_old_name_of_match_works_with_a_warning(
    spark: "SparkSession", read: Read, orders: Path
) -> None:
    with pytest.warns(FutureWarning, match="pattern is now called match"):
        KVStreamSource({"pattern": "*"})
    assert patterns({"pattern": "a"}) == ["a"]
    assert patterns({"pattern": "a", "match": "b,c"}) == ["b", "c"]
    assert read(path=orders, pattern="sku:[0-4]").count() == 5
    place: Any = {"path": str(orders)}
    with pytest.warns(DeprecationWarning, match="pattern is now called match") as warned:
        found = verify(spark, place, place, pattern="sku:*")  # type: ignore[call-arg]
    assert found.source == 10
    assert warned[0].filename == __file__


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 900), ("500ms", 0.5), ("10s", 10), ("2min", 120), ("1h", 3600)]
)
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert duration_s({"maxtriggerdelay": text}, "maxTriggerDelay", "15m") == seconds


@pytest.mark.parametrize("text", ["10", "1.5", "-1s", "1 hour", "s", "min"])
def test_a_duration_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="must be a number with ms, s, m, h or d"):
        duration_s({"maxtriggerdelay": text}, "maxTriggerDelay", "15m")


@pytest.mark.parametrize("name", sorted(set(OPTIONS) - {"paths", "pattern"}))
def test_every_option_is_in_the_docs(name: str) -> None:
    assert f"`{name}`" in DOCS


@pytest.mark.parametrize("name", [name for name in UNKNOWN if "Offsets" in name or "ubscr" in name])
def test_the_docs_name_our_option_for_each_of_kafkas(name: str) -> None:
    assert f"`{name}`" in DOCS.partition("## From Kafka")[2]


@pytest.mark.parametrize("name", ["start", "end", "asof", "startingId"])
def test_a_wrong_bound_names_its_option(name: str) -> None:
    options = {name.lower(): "tomorrow"}
    with pytest.raises(InvalidArgument, match=f"^the option {name}: .*'tomorrow'"):
        first_id(options), last_id(options), after_id(options)


def test_a_wrong_value_names_its_option_as_the_docs_spell_it() -> None:
    with pytest.raises(InvalidArgument, match="the option failOnDataLoss must be true or false"):
        flag({"failondataloss": "perhaps"}, "failondataloss", True)
    with pytest.raises(InvalidArgument, match="the option txnVersion must be an integer"):
        number({"txnversion": "-1"}, "txnversion", None)


def test_a_pattern_that_begins_with_a_bracket_is_given_in_an_array() -> None:
    with pytest.raises(InvalidArgument, match="given in an array") as caught:
        patterns({"match": "[ab]*"})
    assert str(caught.value).endswith("""given in an array: ["[ab]*"])""")
    assert patterns({"match": '["[ab]*"]'}) == ["[ab]*"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:pw@h:1/3", "redis://h:1/3"),
        ("redis://h?db=3&password=pw&socket_timeout=9", "redis://h?db=3"),
        ("unix:///run/s?db=3", "unix:///run/s?db=3"),
    ],
)
def test_a_place_shows_its_database_and_no_password(url: str, shown: str) -> None:
    assert Place("url", url).shown == shown


def test_databases_of_one_server_are_two_places() -> None:
    first, second = places({"url": "unix:///run/s?db=1,unix:///run/s?db=2"})
    assert first.shown != second.shown


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"path": "/data"}, "/data"),
        ({"path": "/data", "db": "0"}, "/data"),
        ({"path": "/data", "db": "1"}, "/data?db=1"),
        ({"url": "redis://h:1", "db": "2"}, "redis://h:1?db=2"),
    ],
)
def test_a_place_shows_the_database_of_the_options(options: dict[str, str], shown: str) -> None:
    assert [place.shown for place in places(options)] == [shown]


@pytest.mark.parametrize(
    ("url", "user", "full"),
    [
        ("redis://h:1/3?socket_timeout=9", None, "redis://:p%40w@h:1/3?socket_timeout=9"),
        ("redis://you:x@h", None, "redis://you:p%40w@h"),
        ("redis://you:x@h", "me", "redis://me:p%40w@h"),
        ("unix:///run/s", "me", "unix://me:p%40w@/run/s"),
    ],
)
def test_a_url_gets_the_user_and_password_of_the_options(
    url: str, user: str | None, full: str
) -> None:
    assert Place("url", url, None, user, "p@w").url == full
    assert Place("url", url).url == url


@pytest.mark.parametrize(
    ("options", "place"),
    [({"path": "/a,/b,/a/"}, "'/a'"), ({"url": "redis://:pw@h,redis://:pw@h"}, "'redis://h'")],
)
def test_a_place_is_named_once(options: dict[str, str], place: str) -> None:
    with pytest.raises(InvalidArgument, match=f"names {place} twice"):
        places(options)
