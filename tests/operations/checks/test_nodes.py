"""The node index, compared with the entries."""

from collections.abc import Callable

import pytest

from kvstream import Store, StreamID
from kvstream.types.ids import MIN_ID
from tests.operations.checks.seeding import (
    MESSAGES,
    NODE_ENTRIES,
    TREES,
    Reopen,
    Rows,
    assert_mended,
    damage,
    fault_texts,
    use,
)

Seed = Callable[[Rows], None]


def _whole(rows: Rows) -> int:
    """Return the place of a node without deleted entries."""
    return next(
        at
        for at, node in enumerate(rows.nodes)
        if at and node.live == node.appended == NODE_ENTRIES
    )


def _edit(**fields: object) -> Seed:
    return lambda rows: rows.edit_node(_whole(rows), **fields)


def _delete_node(rows: Rows) -> None:
    rows.delete_from(rows.orders.nodes_tree, rows.nodes[2].first.packed)


def _cut_node(rows: Rows) -> None:
    rows.put_in(rows.orders.nodes_tree, rows.nodes[2].first.packed, b"\x00")


def _add_node_without_entries(rows: Rows) -> None:
    node = rows.nodes[1]
    empty = StreamID(node.last.ms, node.last.seq + 1)
    rows.put_in(rows.orders.nodes_tree, empty.packed, node.encode())


def _add_row_of_another_length(rows: Rows) -> None:
    rows.put_in(rows.orders.nodes_tree, rows.nodes[1].first.packed + b"x", b"")


def _add_early_row_of_another_length(rows: Rows) -> None:
    rows.put_in(rows.orders.nodes_tree, b"\x00", b"")


def _give_open_node_a_row(rows: Rows) -> None:
    rows.put_in(rows.orders.nodes_tree, rows.orders.open_first.packed, rows.nodes[0].encode())


def _reach_too_far(rows: Rows) -> None:
    rows.edit_node(_whole(rows), last=rows.orders.last)


def _end_too_early(rows: Rows) -> None:
    rows.edit_node(_whole(rows), last=rows.nodes[_whole(rows)].first)


def _leave_old_node(rows: Rows) -> None:
    rows.put_in(rows.orders.nodes_tree, StreamID(1, 1).packed, rows.nodes[0].encode())
    rows.edit_orders(swept=StreamID(2, 2))


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (lambda rows: rows.edit_orders(nodes=99), ["the number of nodes is wrong"]),
        (lambda rows: rows.edit_orders(head=MIN_ID), ["the first node is wrong"]),
        (lambda rows: rows.edit_orders(head=rows.orders.last), ["the first node is wrong"]),
        (_edit(live=3), ["a node's live is wrong"]),
        (_edit(live=2000), ["a node's live is wrong"]),
        (_edit(appended=2), ["a node's appended is wrong"]),
        (_edit(size=77), ["a node's size is wrong"]),
        (_edit(names=(b"other",)), ["a node's names is wrong"]),
        (_end_too_early, ["a node's last is wrong"]),
        (_reach_too_far, ["a node's last is wrong"]),
        (_cut_node, ["a node cannot be decoded"]),
        (_add_node_without_entries, ["a node has no entries"]),
        (_add_row_of_another_length, ["a row that is no node"]),
        (_add_early_row_of_another_length, ["a row that is no node"]),
        (_give_open_node_a_row, ["the open node has a row"]),
        (_leave_old_node, ["a node was not swept"]),
        (lambda rows: rows.edit_orders(open_live=1), ["a node's live is wrong"]),
        (lambda rows: rows.edit_orders(open_appended=0), ["a node's appended is wrong"]),
        (lambda rows: rows.edit_orders(open_last=MIN_ID), ["a node's last is wrong"]),
        (lambda rows: rows.edit_orders(names=(b"other",)), ["a node's names is wrong"]),
    ],
)
def test_a_wrong_node_is_reported_and_repaired(
    busy: Store, reopen: Reopen, seed: Seed, expected: list[str]
) -> None:
    assert_mended(damage(busy, reopen, seed), reopen, *expected)


def test_a_lost_record_of_a_node_is_restored(busy: Store, reopen: Reopen) -> None:
    before = Rows(busy).nodes
    place = _whole(Rows(busy))
    store = damage(
        busy,
        reopen,
        lambda rows: rows.put_in(rows.orders.nodes_tree, before[place].first.packed, b""),
    )
    assert fault_texts(store.check(repair=True)) == ["a node cannot be decoded"]
    assert Rows(store).nodes == before


def test_entries_of_a_lost_node_join_the_previous_one(busy: Store, reopen: Reopen) -> None:
    store = damage(busy, reopen, _delete_node)
    expected = [
        "a node's last is wrong",
        "a node's appended is wrong",
        "a node's live is wrong",
        "a node's size is wrong",
        "the number of nodes is wrong",
    ]
    assert_mended(store, reopen, *expected)


def test_a_lost_index_is_rebuilt_in_nodes_of_the_usual_length(busy: Store, reopen: Reopen) -> None:
    def lose_index(rows: Rows) -> None:
        rows.delete(TREES, *(key for key, _ in rows.under(TREES, _tree(rows))))

    store = damage(busy, reopen, lose_index)
    found = fault_texts(store.check(repair=True))
    assert found[0] == "entries are in no node"
    assert store.check() == []
    rows = Rows(store)
    assert {node.live for node in rows.nodes[:-1]} == {NODE_ENTRIES}
    assert sum(node.live for node in rows.nodes) + rows.orders.open_live == rows.orders.length
    use(store)


def _tree(rows: Rows) -> bytes:
    return rows.orders.nodes_tree.to_bytes(8)


@pytest.mark.parametrize("open_first", [MIN_ID, StreamID(5, 5)])
def test_the_last_closed_node_replaces_a_lost_open_node(
    busy: Store, reopen: Reopen, open_first: StreamID
) -> None:
    last = Rows(busy).nodes[-1].first
    store = damage(busy, reopen, lambda rows: rows.edit_orders(open_first=open_first))
    assert "the last node is not the open one" in fault_texts(store.check(repair=True))
    assert store.check() == []
    assert Rows(store).orders.open_first == last
    use(store)


def test_the_size_of_the_open_node_is_measured_again(busy: Store, reopen: Reopen) -> None:
    before = Rows(busy).orders
    assert before.open_live == before.open_appended
    store = damage(busy, reopen, lambda rows: rows.edit_orders(open_bytes=1))
    assert_mended(store, reopen, "a node's size is wrong")


def test_an_open_node_measured_beyond_its_last_entry_is_corrected(
    busy: Store, reopen: Reopen
) -> None:
    def measure_too_far(rows: Rows) -> None:
        rows.edit_orders(measured=StreamID(rows.orders.open_last.ms + 1, 0))

    store = damage(busy, reopen, measure_too_far)
    assert fault_texts(store.check(repair=True)) == ["a node's size is wrong"]
    store = damage(store, reopen, measure_too_far)
    assert_mended(store, reopen, "the open node is measured too far")


def test_the_last_closed_node_replaces_an_empty_open_node(busy: Store, reopen: Reopen) -> None:
    last = Rows(busy).nodes[-1].first

    def lose_open_entries(rows: Rows) -> None:
        first = rows.orders.prefix + rows.orders.open_first.packed
        rows.delete(MESSAGES, *(key for key, _ in rows.live() if key >= first))

    store = damage(busy, reopen, lose_open_entries)
    expected = [
        "the last node is not the open one",
        "the number of nodes is wrong",
        "the length is wrong",
    ]
    assert fault_texts(store.check(repair=True)) == expected
    assert store.check() == []
    assert Rows(store).orders.open_first == last
    use(store)


def test_an_empty_stream_has_no_open_node(store: Store, reopen: Reopen) -> None:
    store.stream("orders").add({"a": "b"}, maxlen=0)
    eid = StreamID(1, 1)
    store = damage(
        store,
        reopen,
        lambda rows: rows.edit_orders(open_first=eid, open_last=eid, open_appended=1, open_live=1),
    )
    assert fault_texts(store.check(repair=True)) == ["the open node is none"]
    assert store.check() == []


def test_nodes_are_counted_over_gaps_of_deleted_entries(store: Store) -> None:
    stream = store.stream("s")
    ids = stream.add_many([{"n": number} for number in range(1000)])
    for gap in (slice(0, 3), slice(99, 101), slice(250, 450), slice(998, 1000)):
        stream.delete(ids[gap])
        assert store.check() == []


def test_a_row_between_two_nodes_is_reported(busy: Store, reopen: Reopen) -> None:
    def put_between(rows: Rows) -> None:
        last = rows.nodes[_whole(rows)].last
        between = StreamID(last.ms, last.seq + 1)
        rows.put(MESSAGES, rows.orders.prefix + between.packed, rows.live()[0][1])

    store = damage(busy, reopen, put_between)
    expected = [
        "a node's last is wrong",
        "a node's appended is wrong",
        "a node's live is wrong",
        "a node's size is wrong",
        "the length is wrong",
    ]
    assert_mended(store, reopen, *expected)
