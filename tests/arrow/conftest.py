"""The places of tests/remote: the tests read tables from all of them."""

from tests.remote.conftest import directory, old, place, places, url

__all__ = ["directory", "old", "place", "places", "url"]
