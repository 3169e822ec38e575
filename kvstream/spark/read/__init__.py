"""Streams as rows of Spark: batch reads, streaming reads, and tables of metadata."""
