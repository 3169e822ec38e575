"""Reads: the rows of streams, and the one decision on how entries are read."""
