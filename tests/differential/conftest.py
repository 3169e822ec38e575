"""Fixtures of the differential tests."""

from tests.semantics.fixtures import opened, redis_server

__all__ = ["opened", "redis_server"]
