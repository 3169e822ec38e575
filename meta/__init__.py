"""Metadata rows as objects: streams, groups, consumers and pending entries."""
