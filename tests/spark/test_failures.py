"""Failures of Spark are converted to one-line errors of kvstream."""

from typing import TYPE_CHECKING

import pytest

from kvstream import Corruption, StoreLocked
from kvstream.errors import KVStreamError, RequestError
from kvstream.spark.options import SparkFailed, error_of, translate_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN_A_TASK = """[STREAM_FAILED] Query terminated: Job aborted: Traceback (most recent call last):
  File "x.py", line 1, in read
kvstream.errors.StoreLocked: another opener holds the store
During handling of the above exception, another exception occurred:
kvstream.errors.Corruption: a row is damaged: here
\tat org.apache.spark
"""
IN_JAVA = """An error occurred while calling o1.save.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file x
\tat org.apache.spark.sql.errors
Caused by: org.apache.hadoop.fs.ChecksumException: Checksum error: x at 9
\tat org.apache.hadoop.fs
"""
TEXTS: dict[str, tuple[type[KVStreamError], str]] = {
    IN_A_TASK: (Corruption, "a row is damaged: here"),
    "x\nkvstream.errors.StoreLocked: it is held": (StoreLocked, "it is held"),
    "kvstream.spark.read.partitions.DataLoss: trimmed": (SparkFailed, "trimmed"),
    "[PATH_NOT_FOUND] Path does not exist: x\nstack": (SparkFailed, "Path does not exist: x"),
    IN_JAVA: (
        SparkFailed,
        "Encountered error while reading file x (Checksum error: x at 9)",
    ),
    "": (SparkFailed, "the Spark job failed without a message"),
}


@pytest.mark.parametrize("text", TEXTS)
def test_the_last_error_of_kvstream_is_shown_or_the_first_line(text: str) -> None:
    kind, message = TEXTS[text]
    error = error_of(text)
    assert (type(error), str(error)) == (kind, message)


def test_no_stack_is_logged_beside_the_message(
    spark: "SparkSession", capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(SparkFailed, match=r"with name `absent` cannot be resolved"),
        translate_errors(),
    ):
        spark.range(1).selectExpr("absent").collect()
    assert "SQLQueryContextLogger" not in capfd.readouterr().err


def test_a_failure_of_spark_is_a_refusal() -> None:
    assert issubclass(SparkFailed, RequestError)
