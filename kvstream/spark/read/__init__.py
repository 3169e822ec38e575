"""Reading streams into DataFrames: batch reads, streaming reads, and metadata tables."""
