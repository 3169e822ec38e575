"""The blocks with Spark of these pages run as printed, one after another, and the example."""

import re
import runpy
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent
from types import CodeType
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from kvstream import Store
from tests.spark.conftest import ROOT, SLOW_START, TRIES, fill, order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def blocks(name: str) -> list[str]:
    text = (ROOT / name).read_text()
    found = re.findall(r"^ *```python\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return [dedent(block) for block in found if "spark" in block]


def placed(block: str, folder: Path) -> str:
    """Return a block with absolute paths: Spark's processes were started in another directory.

    Its archive is that of the store, and its moment is now.
    """
    block = block.replace("s3://backups/orders", f"file://{folder}/bucket")
    block = block.replace("2026-11-29 12:00:03.5Z", datetime.now(UTC).isoformat())
    return re.sub(
        r'(\.option\(\s*"(?:path|checkpointLocation)", |{"path": |\.parquet\()"([\w-]+)"',
        lambda found: f"{found[1]}{str(folder / found[2])!r}",
        block,
    )


def run(spark: "SparkSession", block: CodeType, names: dict[str, Any]) -> None:
    """Run a block, and its query until it has read everything."""
    for left in reversed(range(TRIES)):
        exec(block, names)
        try:
            for query in spark.streams.active:
                query.processAllAvailable()
            return
        except StreamingQueryException as error:
            if SLOW_START not in str(error) or not left:
                raise


def sums_are_right(spark: "SparkSession") -> None:
    """Check that the recipe of an aggregation writes the sums of an hour after its end."""
    start = 1_700_000_000_000
    for later_ms in (2, 3):  # hours after the first; Spark emits a batch later
        with Store.open("data") as store:
            store.stream("orders").add(order(0), id=(start + later_ms * 3_600_000, 0))
        for query in spark.streams.active:
            query.processAllAvailable()
    with Store.open("sums") as store:
        found = [entry.fields or {} for entry in store.stream("sums").range()]
    first = {
        each[b"sku"]: int(each[b"qty"]) for each in found if each[b"hour"].endswith(b"22:00:00")
    }
    assert first == {b"a%d" % sku: sum(range(sku, 100, 10)) for sku in range(10)}


COUNTED: dict[str, dict[str, int]] = {
    "docs/spark.md": {"df": 100},
    "docs/archive.md": {"then": 100},
    "docs/tutorials/first-pipeline.md": {"sales": 1000},
}
"""The DataFrames that the blocks of a page leave, with their rows."""


@pytest.mark.usefixtures("adaptive")
@pytest.mark.parametrize("name", COUNTED)
def test_the_printed_blocks_run(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open("data", archive=f"file://{tmp_path}/bucket") as store:
        fill(store, 100)
    names: dict[str, Any] = {"spark": spark}
    try:
        for block in blocks(name):
            run(spark, compile(placed(block, tmp_path), name, "exec"), names)
        if "sums" in names:
            sums_are_right(spark)
    finally:
        for query in spark.streams.active:
            query.stop()
    assert {frame: names[frame].count() for frame in COUNTED[name]} == COUNTED[name]
    assert "rows" not in names or names["rows"] == 1001, "the tutorial follows what is added later"


def test_the_example_prints_what_its_page_shows(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for left in reversed(range(TRIES)):
        program = runpy.run_path(str(ROOT / "examples" / "spark_stream.py"))
        try:
            program["main"](spark, tmp_path / str(left))
            break
        except StreamingQueryException as error:
            if SLOW_START not in str(error) or not left:
                raise
        capsys.readouterr()
    page = (ROOT / "examples" / "README.md").read_text()
    printed = re.search(r"\(spark_stream\.py\)$.*?^```text\n(.*?)^```$", page, re.DOTALL | re.M)
    assert printed is not None
    assert capsys.readouterr().out == printed[1]
