"""The entries that both sides write and read, and the sizes of a run."""

from dataclasses import dataclass

BATCH = 1000
PAGE = 1000

Fields = dict[str, str]


def entry(number: int) -> Fields:
    """Return an order with 4 fields and 100 bytes of names and values."""
    return {
        "sku": f"sku-{number % 9973:016d}",
        "quantity": f"{number % 12 + 1:02d}",
        "customer": f"customer-{number:020d}",
        "placed": f"2026-05-17T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:00.250Z",
    }


def entries(count: int) -> list[Fields]:
    """Return ``count`` distinct orders."""
    return [entry(number) for number in range(count)]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of one round, in entries unless stated otherwise."""

    rounds: int
    settle_s: float
    """The pause before each measurement, for background work to finish."""
    single: int
    """Calls with one entry each."""
    bulk: int
    """Entries written or read in batches of 1000."""
    synced: int
    """Entries with an fsync each, from one caller."""
    synced_threads: int
    """Entries with an fsync each, from 50 threads together."""
    trimmed: int
    """Entries added to a stream with MAXLEN 1000."""
    acked: int
    """Entries delivered and acknowledged around a few that stay pending."""
    large: int
    """Entries of the store whose opening time and memory are measured."""
    loaded: int
    """Entries of a bulk load with each call timed."""
    served: int
    """Requests to a server without pipelining."""
    moved: int
    """Entries of the RDB file."""
    sparked: int
    """Entries of the Spark rows."""
    sparked_mb: int
    """Megabytes of the store read by executors with less memory."""
    keys: int
    """Keys of the database that is listed and flushed."""
    window_s: float
    """How long other clients' latency is measured during one large command."""
    command_rounds: int
    """Rounds of the rows of commands, whose servers are four."""
    requests: int
    """Requests of one command without pipelining."""
    pending: int
    """Pending entries that are acknowledged in random order."""
    cycles: int
    """Entries added, read and acknowledged by a queue's clients."""
    open_s: float
    """Seconds of one load with a fixed rate."""
    blocked: int
    """Blocked clients of which one is woken."""
    wakeups: int
    """How often one is woken, and how often all readers of a stream."""
    expiring: int
    """Keys with a time to live during INFO."""
    queued: int
    """Entries of an embedded queue."""
    embedded_streams: int
    """Streams of a store among which the library chooses."""
    jobs: int
    """Jobs of one round."""
    archive_rounds: int
    """Rounds with and without an archive: the differences are small."""
    archive_interval_s: float
    """How often a piece is put into an archive."""
    archived_mb: int
    """Megabytes of tables and log of the archive that is restored."""


FULL = Sizes(
    rounds=5,
    settle_s=0.2,
    single=20_000,
    bulk=100_000,
    synced=1_000,
    synced_threads=5_000,
    trimmed=1_000_000,
    acked=1_000_000,
    large=10_000_000,
    loaded=10_000_000,
    served=50_000,
    moved=2_000_000,
    sparked=4_000_000,
    sparked_mb=2_000,
    keys=200_000,
    window_s=1.0,
    command_rounds=3,
    requests=30_000,
    pending=200_000,
    cycles=20_000,
    open_s=3.0,
    blocked=1_000,
    wakeups=500,
    expiring=10_000,
    queued=10_000,
    embedded_streams=200_000,
    jobs=2_000,
    archive_rounds=21,
    archive_interval_s=1.0,
    archived_mb=1_000,
)
QUICK = Sizes(
    rounds=2,
    settle_s=0,
    single=1_000,
    bulk=5_000,
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
    command_rounds=1,
    requests=1_000,
    pending=2_000,
    cycles=400,
    open_s=0.2,
    blocked=50,
    wakeups=20,
    expiring=200,
    queued=200,
    embedded_streams=1_000,
    jobs=20,
    archive_rounds=2,
    archive_interval_s=0.05,
    archived_mb=4,
)
LOADED_MB, LOADED = 10_000, 60_000_000
"""The sizes with KVSTREAM_LOAD in the environment, which take minutes and gigabytes of disk."""
