"""The blocks of docs/spark.md and of the README run as printed, one after another."""

import re
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from kvstream import Store
from tests.spark.conftest import ROOT, SLOW_START, TRIES, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def blocks(name: str) -> list[str]:
    text = (ROOT / name).read_text()
    found = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for block in found if "spark" in block]


def placed(block: str, folder: Path) -> str:
    """Return a block with whole paths: Spark's processes were started in another directory."""
    return re.sub(
        r'(\.option\("(?:path|checkpointLocation)", )"(\w+)"',
        lambda found: f"{found[1]}{str(folder / found[2])!r}",
        block,
    )


def run(spark: "SparkSession", block: CodeType, names: dict[str, Any]) -> None:
    """Run a block, and the query that it starts until it has read all."""
    for left in reversed(range(TRIES)):
        exec(block, names)
        try:
            for query in spark.streams.active:
                query.processAllAvailable()
            return
        except StreamingQueryException as error:
            if SLOW_START not in str(error) or not left:
                raise


@pytest.mark.parametrize("name", ["README.md", "docs/spark.md"])
def test_what_is_printed_runs(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open("data") as store:
        fill(store, 100)
    names: dict[str, Any] = {}
    try:
        for block in blocks(name):
            run(spark, compile(placed(block, tmp_path), name, "exec"), names)
    finally:
        for query in spark.streams.active:
            query.stop()
    assert names["df"].count() == 100
