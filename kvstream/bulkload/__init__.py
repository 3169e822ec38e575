"""Loads that are too long for one batch: a stream from its image, parts from other processes."""
