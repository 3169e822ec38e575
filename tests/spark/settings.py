"""Settings of Spark sessions for tests: small, quiet, local, and fast to start."""

JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Compile once and not twice: short programs need half of the processor time."""
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
FILE_MANAGER = "FileSystemBasedCheckpointFileManager"
ADAPTIVE = "spark.sql.adaptive.enabled"
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
    # A plan that is made anew after each stage takes a seventh of the processor's time of a job.
    # Tests with the fixture ``adaptive``, and the demo, have Spark's default.
    ADAPTIVE: "false",
    # Each look of an idle query for new entries takes the processor for milliseconds.
    "spark.sql.streaming.pollingDelay": "100ms",
    # By default Spark runs readlink, eight times for each small file of a checkpoint.
    "spark.sql.streaming.checkpointFileManagerClass": f"{CHECKPOINTS}.{FILE_MANAGER}",
    # Errors of Python are long enough without the JVM's stack.
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
    "spark.log.level": "OFF",
}
