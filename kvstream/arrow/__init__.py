"""Streams as Arrow batches: for pandas, polars, DuckDB and Parquet, and below Spark's reads."""
