"""Metrics of a server for Prometheus, and its health."""
