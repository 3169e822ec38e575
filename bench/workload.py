"""The entries that are written and how many of them; both sides get the very same."""

from dataclasses import dataclass

BATCH = 1000
PAGE = 1000

Fields = dict[str, str]


def entries(count: int) -> list[Fields]:
    """Return ``count`` different orders: 4 fields, 100 bytes of names and values each."""
    return [
        {
            "sku": f"sku-{number % 9973:016d}",
            "quantity": f"{number % 12 + 1:02d}",
            "customer": f"customer-{number:020d}",
            "placed": f"2026-05-17T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:00.250Z",
        }
        for number in range(count)
    ]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one round does, in entries where not said otherwise."""

    rounds: int
    settle_s: float
    """Pause before the clock starts, so that nobody pays for what came before."""
    single: int
    """Calls that carry one entry each."""
    bulk: int
    """Entries written or read by the thousand."""
    synced: int
    """Entries that each wait for the disk, one caller."""
    synced_threads: int
    """The same, shared among the threads."""
    trimmed: int
    """Entries added to a stream that keeps 1000."""
    acked: int
    """Entries delivered and acknowledged before the stuck ones are looked for."""
    large: int
    """Entries of the store whose opening and memory are measured."""
    loaded: int
    """Entries of a bulk load whose calls are timed one by one."""
    served: int
    """Requests to a server, one at a time from each client."""
    moved: int
    """Entries of an RDB file that is loaded."""
    sparked: int
    """Entries that Spark reads."""
    sparked_mb: int
    """Megabytes of the store that is read by executors with less memory."""
    keys: int
    """Keys of a database that is listed and flushed."""
    window_s: float
    """How long other clients are watched while one asks for something large."""


FULL = Sizes(
    rounds=7,
    settle_s=0.2,
    single=20_000,
    bulk=100_000,
    synced=1_000,
    synced_threads=5_000,
    trimmed=1_000_000,
    acked=1_000_000,
    large=10_000_000,
    loaded=10_000_000,
    served=100_000,
    moved=2_000_000,
    sparked=4_000_000,
    sparked_mb=2_000,
    keys=200_000,
    window_s=1.0,
)
QUICK = Sizes(
    rounds=3,
    settle_s=0,
    single=1_000,
    bulk=10_000,
    synced=200,
    synced_threads=1_000,
    trimmed=10_000,
    acked=10_000,
    large=50_000,
    loaded=20_000,
    served=1_000,
    moved=20_000,
    sparked=20_000,
    sparked_mb=50,
    keys=2_000,
    window_s=0.05,
)
LOADED_MB, LOADED = 10_000, 60_000_000
"""The same with KVSTREAM_LOAD in the environment: some minutes, and the space on disk."""
