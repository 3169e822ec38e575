"""A load that is killed at any step leaves the complete stream or nothing, and can be resumed."""

from pathlib import Path

import pytest

from kvstream import Store
from kvstream.types.thresholds import Thresholds
from tests.opening import Stores
from tests.operations.images.kept import Kept, take_image
from tests.operations.images.kills import lives

SMALL_STEPS = Thresholds(direct_entries=150, table_bytes=10_000, load_rows=7)


@pytest.fixture
def source(open_store: Stores) -> Kept:
    store = open_store("source")
    stream = store.stream("s")
    stream.add_many([{"f": f"value {n}"} for n in range(700)])
    stream.trim(maxlen=650)
    group = stream.create_group("g", "0")
    for count in (1, 2, 3, 50, 1, 1, 1, 1):
        group.consumer(f"c{count}").read(count=count)
    return take_image(store, "s")


def load(store: Store, source: Kept, label: bytes) -> None:
    with store.loader("s", replace=True, label=label) as loader:
        for node in source.found:
            loader.node(node)
        loader.finish(source.rest)


@pytest.mark.parametrize("label", [b"", b"mine"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_killed_load_leaves_the_complete_stream_or_nothing(
    open_store: Stores, tmp_path: Path, source: Kept, label: bytes, replaced: bool
) -> None:
    store = open_store("target", SMALL_STEPS)
    if replaced:
        store.stream("s").add({"f": "old"})
    with lives(store, tmp_path) as left:
        load(store, source, label)
    assert len(left) > 12
    seen = set()
    for place in left:
        found = open_store(place, SMALL_STEPS)
        assert found.check() == []
        whole = len(found.stream("s")) == source.rest.length
        seen.add((whole, len(found.unfinished_loads())))
        assert whole or len(found.stream("s")) == replaced
        if not whole:
            load(found, source, label)
        after = take_image(found, "s")
        assert (after.found, after.rest) == (source.found, source.rest)
        assert found.check() == []
        assert found.unfinished_loads() == []
        found.close()
    assert seen == ({(False, 0), (False, 1), (True, 0)} if label else {(False, 0), (True, 0)})
