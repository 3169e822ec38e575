"""Places that the library works on: a directory, and servers."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import kvstream
from tests.peers import PEERS, PeerProcess
from tests.serving import ServerProcess

SERVERS = ("server", *PEERS)
PLACES = ("directory", "socket", *SERVERS)


class Places:
    """The servers of a file of tests, each started when a test first needs it."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._ends = ExitStack()
        self._urls: dict[str, str] = {}
        self._peers: dict[str, PeerProcess] = {}

    def _peer(self, name: str) -> PeerProcess:
        if name not in self._peers:
            self._peers[name] = PeerProcess(name, self._factory.mktemp(name))
            self._ends.callback(self._peers[name].stop)
        return self._peers[name]

    def of(self, name: str) -> str:
        """Return the place of this name, without any key."""
        if name == "directory":
            return str(self._factory.mktemp("store"))
        if name == "socket":
            url = f"unix://{self._peer('redis-7.0').socket}"
        elif name in PEERS:
            url = f"redis://127.0.0.1:{self._peer(name).port}"
        else:
            url = self._urls.get(name) or self._serve(name)
        with kvstream.open(url) as store:
            store.flush_all()
        return url

    def _serve(self, name: str) -> str:
        server = ServerProcess(self._factory.mktemp("served") / "store", "--durability", "no")
        self._ends.callback(server.stop)
        self._urls[name] = f"redis://127.0.0.1:{server.port}"
        return self._urls[name]

    def close(self) -> None:
        self._ends.close()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with closing(Places(tmp_path_factory)) as made:
        yield made


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, places: Places) -> str:
    """Each place in turn, without any key."""
    return places.of(request.param)


@pytest.fixture
def url(places: Places) -> str:
    """The URL of a server of ours."""
    return places.of("server")


@pytest.fixture
def old(places: Places) -> str:
    """The URL of a Redis 7.0."""
    return places.of("redis-7.0")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"
