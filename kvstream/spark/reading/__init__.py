"""How streams become rows of Spark: batch reads, following, and tables of what is about streams."""
