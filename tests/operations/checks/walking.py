"""Random walks over the public API: steps as data, so that a failing walk can be minimised.

There are few keys, groups, consumers and IDs, so that calls collide. Nodes have few entries.
Sometimes many entries are added at once, so that sweeps and runs of full size occur too.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from kvstream import BusyGroup, ManualClock, RequestError, Store

KEYS = st.sampled_from(["s", "s", "s", "t"])
GROUPS = st.sampled_from(["g", "g", "h"])
CONSUMERS = st.sampled_from(["a", "a", "b", ""])
FIELDS = st.sampled_from(
    [
        {"f": "v"},
        {"f": 12, "g": "longer " * 9},
        {"g": "w"},
        [("f", "1"), ("f", "2")],
        {str(number): number for number in range(20)},
    ]
)
POLICIES = st.sampled_from([None, "KEEPREF", "DELREF", "ACKED"])
SECONDS = st.sampled_from([0, 0, 1, 60])
OPTIONAL_COUNTS = st.sampled_from([None, 1, 1, 2, 5, 200])
TOP = 2**64 - 1


@dataclass(frozen=True)
class At:
    """The ID at a place in the stream: counted from its start, or from its end if negative."""

    place: int

    def of(self, store: Store, key: str) -> Any:
        entries = (
            store.stream(key).range(count=self.place + 1)
            if self.place >= 0
            else (store.stream(key).revrange(count=-self.place))
        )
        return entries[-1].id if entries else "5-5"


IDS = st.one_of(
    st.integers(-4, 4).map(At),
    st.sampled_from([At(150), At(-150)]),
    st.sampled_from(["0-1", "1-0", "2-2", "2-5", "5-5", "9-1"] * 4 + [f"{TOP}-{TOP}"]),
)
ID_LISTS = st.lists(IDS, min_size=1, max_size=4)
ADD_IDS = st.sampled_from(
    ["*"] * 20 + ["1-*", "2-5", "7-7", "9-*"] * 4 + [f"{TOP}-3", f"{TOP}-{TOP}"]
)
ADDED = st.sampled_from([None, None, 0, 5000])
MAX_DELETED = st.sampled_from([None, None, "0-0", "2-2"])
KEY_DEEDS = st.sampled_from(
    ["delete", "rename", "rename", "expire", "persist", "other database", "flush", "look", "look"]
)
LIMITS = st.sampled_from([None, None, 0, 3, 200])
LENGTHS = st.sampled_from([0, 1, 2, 3, 5, 10, 100, 500])


@dataclass(frozen=True)
class Step:
    """One call, by name and arguments."""

    name: str
    arguments: dict[str, Any]

    def take(self, world: "World") -> None:
        with suppress(RequestError):  # refused: it must change nothing
            _CALLS[self.name](world, **self.arguments)


class World:
    """A store that can be reopened, and its clock."""

    def __init__(self, open_store: Callable[[], Store], clock: ManualClock) -> None:
        self._open = open_store
        self.clock = clock
        self.store = open_store()

    def reopen(self) -> None:
        self.store.close()
        self.store = self._open()

    def ids(self, key: str, ids: list[Any]) -> list[Any]:
        return [eid.of(self.store, key) if isinstance(eid, At) else eid for eid in ids]


def _add(world: World, key: str, fields: Any, **options: Any) -> None:
    world.store.stream(key).add(fields, **_trim_options(world, key, options))


def _add_many(world: World, key: str, fields: list[Any], times: int) -> None:
    world.store.stream(key).add_many(fields * times)


def _trim(world: World, key: str, **options: Any) -> None:
    world.store.stream(key).trim(**_trim_options(world, key, options))


def _trim_options(world: World, key: str, options: dict[str, Any]) -> dict[str, Any]:
    if options.get("minid") is not None:
        options = {**options, "minid": world.ids(key, [options["minid"]])[0]}
    return options


def _delete(world: World, key: str, ids: list[Any], policy: str | None) -> None:
    stream = world.store.stream(key)
    if policy is None:
        stream.delete(world.ids(key, ids))
    else:
        stream.delete_entries(world.ids(key, ids), ref_policy=policy)  # type: ignore[arg-type]


def _set_id(world: World, key: str, last: Any, added: int | None, deleted: Any) -> None:
    (last,) = world.ids(key, [last])
    world.store.stream(key).set_id(last, entries_added=added, max_deleted_id=deleted)


def _create_group(world: World, key: str, group: str, start: Any) -> None:
    world.store.stream(key).create_group(group, *world.ids(key, [start]))


def _set_group(world: World, key: str, group: str, start: Any, read: int | None) -> None:
    world.store.stream(key).group(group).set_id(*world.ids(key, [start]), entries_read=read)


def _read(world: World, key: str, group: str, consumer: str, **options: Any) -> None:
    stream = world.store.stream(key)
    with suppress(BusyGroup):
        stream.create_group(group, "0")
    stream.group(group).consumer(consumer).read(**options)


def _history(world: World, key: str, group: str, consumer: str, **options: Any) -> None:
    world.store.stream(key).group(group).consumer(consumer).history(**options)


def _ack(world: World, key: str, group: str, ids: list[Any], policy: str | None) -> None:
    member = world.store.stream(key).group(group)
    if policy is None:
        member.ack(world.ids(key, ids))
    else:
        member.ack_delete(world.ids(key, ids), ref_policy=policy)  # type: ignore[arg-type]


def _ack_all(world: World, key: str, group: str) -> None:
    member = world.store.stream(key).group(group)
    member.ack([row.id for row in member.pending_range(count=1000)][::2])


def _nack(world: World, key: str, group: str, ids: list[Any], **options: Any) -> None:
    world.store.stream(key).group(group).nack(world.ids(key, ids), **options)


def _claim(
    world: World, key: str, group: str, consumer: str, ids: list[Any], **options: Any
) -> None:
    world.store.stream(key).group(group).claim(consumer, world.ids(key, ids), **options)


def _autoclaim(world: World, key: str, group: str, consumer: str, **options: Any) -> None:
    world.store.stream(key).group(group).autoclaim(consumer, **options)


def _members(world: World, key: str, group: str, consumer: str, deed: str) -> None:
    found = world.store.stream(key).group(group)
    if deed == "destroy":
        found.destroy()
    elif deed == "create":
        found.create_consumer(consumer)
    else:
        found.delete_consumer(consumer)


def _key(world: World, key: str, other: str, deed: str) -> None:
    store = world.store
    deeds: dict[str, Callable[[], object]] = {
        "delete": lambda: store.delete(key),
        "rename": lambda: store.rename(key, other),
        "expire": lambda: store.expire(key, 5),
        "persist": lambda: store.persist(key),
        "other database": lambda: store.select(1).stream(key).add({"f": "v"}),
        "flush": lambda: store.flush(),
        "look": lambda: (store.keys(), store.stream(key).info_full(), store.stream(key).groups()),
    }
    deeds[deed]()


def _idmp(world: World, key: str, pid: str, iid: str | None) -> None:
    stream = world.store.stream(key)
    if iid is None:
        stream.add({"f": "v"}, idmpauto=pid)
    else:
        stream.add({"f": "v"}, idmp=(pid, iid))


def _configure(world: World, key: str, **options: Any) -> None:
    world.store.stream(key).configure(**options)


def _wait(world: World, ms: int) -> None:
    world.clock.advance(ms)


def _reopen(world: World) -> None:
    world.reopen()


class _Undone(Exception):
    """Raised to undo a transaction."""


def _transaction(world: World, steps: list[Step], commit: bool) -> None:
    with suppress(_Undone), world.store.transaction():
        for step in steps:
            step.take(world)
        if not commit:
            raise _Undone


_CALLS: dict[str, Callable[..., None]] = {
    "add": _add,
    "add_many": _add_many,
    "trim": _trim,
    "delete": _delete,
    "set_id": _set_id,
    "create_group": _create_group,
    "set_group": _set_group,
    "read": _read,
    "history": _history,
    "ack": _ack,
    "ack_all": _ack_all,
    "nack": _nack,
    "claim": _claim,
    "autoclaim": _autoclaim,
    "members": _members,
    "key": _key,
    "idmp": _idmp,
    "configure": _configure,
    "wait": _wait,
    "reopen": _reopen,
    "transaction": _transaction,
}


def _step(name: str, **arguments: Any) -> st.SearchStrategy[Step]:
    return st.builds(Step, st.just(name), st.fixed_dictionaries(arguments))


def _trims(name: str, **arguments: Any) -> list[st.SearchStrategy[Step]]:
    signs = {"approximate": st.just(True), "limit": LIMITS, "ref_policy": POLICIES}
    exact = {"ref_policy": POLICIES}
    return [
        _step(name, **arguments, **bound, **how)
        for bound in ({"maxlen": LENGTHS}, {"minid": IDS})
        for how in (signs, exact)
    ]


MEMBER = {"key": KEYS, "group": GROUPS, "consumer": CONSUMERS}
GROUP = {"key": KEYS, "group": GROUPS}
ADDS = [
    _step("add", key=KEYS, fields=FIELDS, id=ADD_IDS),
    _step("add_many", key=KEYS, fields=st.lists(FIELDS, min_size=1), times=st.just(1)),
    _step(
        "add_many",
        key=KEYS,
        fields=st.lists(FIELDS, min_size=1, max_size=3),
        times=st.sampled_from([40, 300]),
    ),
]
TRIMS = [*_trims("add", key=KEYS, fields=FIELDS), *_trims("trim", key=KEYS)]
DELETIONS = [_step("delete", key=KEYS, ids=ID_LISTS, policy=POLICIES)]
READS = [
    _step("read", **MEMBER, count=OPTIONAL_COUNTS, noack=st.sampled_from([False, False, True])),
    _step("read", **MEMBER, count=OPTIONAL_COUNTS),
    _step("read", **MEMBER, count=OPTIONAL_COUNTS, claim_min_idle=SECONDS),
    _step("read", **MEMBER, max_count=st.just(3), max_size=st.just(300), claim_min_idle=SECONDS),
    _step("history", **MEMBER, after=st.sampled_from(["0", "3-0"]), count=OPTIONAL_COUNTS),
]
ACKS = [
    _step("ack", **GROUP, ids=ID_LISTS, policy=POLICIES),
    _step("ack_all", **GROUP),
    _step(
        "nack",
        **GROUP,
        ids=ID_LISTS,
        mode=st.sampled_from(["SILENT", "FAIL", "FATAL"]),
        retrycount=st.sampled_from([None, None, 7]),
        force=st.booleans(),
    ),
]
CLAIMS = [
    _step(
        "claim",
        **MEMBER,
        ids=ID_LISTS,
        min_idle=SECONDS,
        idle=st.sampled_from([None, 0, 90]),
        retrycount=st.sampled_from([None, 4]),
        force=st.booleans(),
        justid=st.booleans(),
    ),
    _step("autoclaim", **MEMBER, min_idle=SECONDS, count=st.sampled_from([1, 2, 100])),
]
MEMBERS = [
    _step("create_group", **GROUP, start=st.sampled_from(["0", "0", "$", At(2)])),
    _step("set_group", **GROUP, start=IDS, read=st.sampled_from([None, 0, 3])),
    _step("members", **MEMBER, deed=st.sampled_from(["create", "delete", "delete", "destroy"])),
]
WHOLE_KEYS = [
    _step("set_id", key=KEYS, last=IDS, added=ADDED, deleted=MAX_DELETED),
    _step("key", key=KEYS, other=st.sampled_from(["s", "t"]), deed=KEY_DEEDS),
]
IDEMPOTENT = [
    _step(
        "idmp",
        key=KEYS,
        pid=st.sampled_from(["p", "q"]),
        iid=st.sampled_from(["1", "2", "3", None]),
    ),
    _step(
        "configure",
        key=KEYS,
        idmp_duration=st.sampled_from([None, 2, 50]),
        idmp_maxsize=st.sampled_from([None, 1, 2]),
    ),
    _step("wait", ms=st.sampled_from([0, 1, 1000, 6000, 60_000, -1000, -61_000])),
]
FAMILIES = [ADDS, ADDS, TRIMS, DELETIONS, READS, READS, ACKS, CLAIMS, MEMBERS, WHOLE_KEYS]
CHANGES = st.sampled_from([*FAMILIES, IDEMPOTENT]).flatmap(st.one_of)
STEPS = st.integers(0, 9).flatmap(
    lambda number: {
        0: _step("reopen"),
        1: _step("transaction", steps=st.lists(CHANGES, max_size=5), commit=st.booleans()),
    }.get(number, CHANGES)
)
WALKS = st.lists(STEPS, max_size=40)
