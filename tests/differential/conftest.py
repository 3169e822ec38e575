"""Fixtures of the differential tests."""

from tests.semantics.fixtures import redis_server

__all__ = ["redis_server"]
