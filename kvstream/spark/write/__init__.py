"""Writing DataFrames into streams: atomic, and exactly once for each micro-batch."""
