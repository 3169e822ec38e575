"""DataFrames into streams: all or nothing, each micro-batch exactly once."""
