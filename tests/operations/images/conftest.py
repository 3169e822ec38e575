"""Fixtures of the tests of images and payloads."""

from tests.operations.fixtures import opened, redis_server

__all__ = ["opened", "redis_server"]
