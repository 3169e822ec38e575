"""What Spark finds by itself, so that ``format("kvstream")`` needs no registering."""

from kvstream.spark.source import KVStreamSource as DefaultSource

__all__ = ["DefaultSource"]

if __name__ == "__main__":  # spark-submit pyspark_kvstream.py --store DIR spark JOB ...
    from kvstream.cli import main

    main(prog_name="kvstream")
