"""The places of tests/remote, for asyncio."""

from tests.remote.conftest import directory, old, place, places, url

__all__ = ["directory", "old", "place", "places", "url"]
