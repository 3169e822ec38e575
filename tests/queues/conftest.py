"""The places of queues: a directory, kvstream's server, and a shared directory from both sides."""

from collections.abc import Callable
from functools import partial

import pytest

import kvstream
from tests.remote.conftest import Places, old, places
from tests.shared.conftest import Holder, directory, holder

__all__ = ["directory", "holder", "old", "place", "places"]

PLACES = ("directory", "server", "owner", "client")


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, places: Places) -> str:
    """Each place in turn, without any key: what ``kvstream.open`` opens."""
    if request.param in ("directory", "server"):
        return places.of(request.param)
    monkeypatch = request.getfixturevalue("monkeypatch")
    for module in (kvstream, kvstream.aio):
        opening = partial(module.open, shared=True, durability="no")
        monkeypatch.setattr(module, "open", opening)
    if request.param == "client":
        start: Callable[[], Holder] = request.getfixturevalue("holder")
        start()
    return str(request.getfixturevalue("directory"))
