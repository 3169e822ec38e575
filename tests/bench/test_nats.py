"""Each work beside NATS does what it says on both servers, and notices what was not done."""

from collections.abc import Iterator

import pytest
from redis import Redis

from bench.load import WrongReply
from bench.nats import BATCHES, WORKS, Nats, Work, nats_program, nats_server
from bench.processes import CLIENTS, kvstream_server
from bench.queue_cycle import BATCH

COUNT = CLIENTS * BATCH
Servers = tuple[Redis, Nats]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Run kvstream and nats-server, or skip where that is not installed."""
    if nats_program() is None:
        pytest.skip("nats-server is not installed")
    folder = tmp_path_factory.mktemp("beside-nats")
    with (
        kvstream_server(folder / "ours", "everysec") as client,
        nats_server(folder / "theirs", "everysec") as nats,
    ):
        yield client, nats


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.key)
def test_a_work_does_what_it_says(work: Work, batch: int, servers: Servers) -> None:
    work.prepare(*servers, COUNT)
    assert work.ours(servers[0], COUNT, batch) > 0
    with pytest.raises(WrongReply):
        work.check(*servers, COUNT)
    assert work.theirs(servers[1], COUNT, batch) > 0
    work.check(*servers, COUNT)
