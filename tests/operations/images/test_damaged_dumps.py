"""Damaged payloads with a right checksum are refused, or loaded as a sound stream.

``KVSTREAM_FUZZ_ROUNDS=n`` damages four times as many payloads.
"""

from random import Random

from kvstream import Store
from kvstream.errors import BadPayload
from tests.operations.images.kept import take_image
from tests.rdb.golden import sealed
from tests.rdb.mutating import ROUNDS, SEED, damaged

TARGETS = ("redis:6.2", "redis:7.0", "redis:7.2", "redis:8.6", "redis:8.8")
PART = 4
"""Each takes as long as four that are not restored."""


def payloads(store: Store) -> list[bytes]:
    """Return payloads of a stream with every feature."""
    stream = store.stream("s")
    for n in range(1, 30):
        stream.add([("f", n), ("g" if n % 5 else "h", "x" * (n % 70))], id=(n, n % 3))
    stream.configure(idmp_maxsize=5)
    for name in ("g", "h"):
        group = stream.create_group(name, "0")
        for consumer in ("c", "d"):
            group.consumer(consumer).read(count=5)
        group.nack("1-1", "2-2")
    made = [store.dump("s", target) for target in TARGETS]
    store.delete("s")
    return [payload for payload in made if payload is not None]


def test_damaged_payloads_leave_a_sound_store(store: Store) -> None:
    whole = payloads(store)
    taken = 0
    for seed in range(SEED, SEED + ROUNDS // PART):
        chance = Random(seed)
        payload = sealed(damaged(chance.choice(whole)[:-10], chance))
        before = store.keys()
        try:
            store.restore("t", payload, replace=True)
        except BadPayload:
            assert store.keys() == before, f"seed {seed}"
            continue
        taken += 1
        assert store.check() == [], f"seed {seed}"
        again = store.dump("t")
        assert again is not None
        store.restore("u", again, replace=True)
        if store.type("t") == "stream":
            assert take_image(store, "t").rest == take_image(store, "u").rest, f"seed {seed}"
            store.stream("t").trim(maxlen=3, approximate=True)
        assert store.check() == [], f"seed {seed}"
    assert 0 < taken < ROUNDS // PART
