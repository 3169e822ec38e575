"""Sessions of Spark as tests want them: small, quiet, of this machine alone, and soon there."""

JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Compiled once and not twice: such short programs take half as much of the processor."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": JVM,
    "spark.executor.extraJavaOptions": JVM,
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.pollingDelay": "10ms",
    # Errors of Python are long enough without the JVM's view of them.
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    "spark.log.level": "OFF",
}
