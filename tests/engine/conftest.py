"""The store of the engine's tests."""

from tests.engine.sharing import clock, shared, store

__all__ = ["clock", "shared", "store"]
