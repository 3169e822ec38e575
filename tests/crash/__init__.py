"""Processes that are killed, and power that is cut: what was acknowledged is there afterwards."""
