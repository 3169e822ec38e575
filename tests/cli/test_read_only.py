"""Reading commands leave every file of the store unchanged."""

import hashlib
import time
from pathlib import Path

import pytest

from tests.cli.program import FIRST, Program

LOOKS = [
    ["ls", "--all"],
    ["info", "orders"],
    ["info", "orders", "--full"],
    ["ttl", "orders"],
    ["range", "orders"],
    ["revrange", "orders"],
    ["tail", "orders"],
    ["len", "orders"],
    ["group", "ls", "orders"],
    ["consumer", "ls", "orders", "billing"],
    ["pending", "orders", "billing"],
    ["pending", "orders", "billing", "--list"],
    ["read", "orders", "--after", FIRST],
    ["read", "orders", "--after", "+", "--block", "1ms"],
    ["export", "orders"],
    ["export", "orders", "--format", "csv"],
    ["stats"],
    ["check"],
]


def digests(directory: Path) -> dict[str, str]:
    """Return a digest of every file of a store, its tables and logs among them."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.iterdir()
        if path.is_file()
    }


@pytest.mark.parametrize("arguments", LOOKS, ids=" ".join)
def test_reading_changes_no_file_of_the_store(orders: Program, arguments: list[str]) -> None:
    before = digests(orders.directory)
    assert any(name.endswith(".sst") for name in before)
    orders(*arguments)
    assert digests(orders.directory) == before


def test_a_killed_store_is_read_without_recovering_it(orders: Program) -> None:
    with orders.start("import", "orders") as importing:
        assert importing.stdin is not None
        importing.stdin.write(b'{"a": 1}\n')
        importing.stdin.flush()
        while not orders.has_logged():
            assert importing.poll() is None
            time.sleep(0.01)
        importing.kill()
    before = digests(orders.directory)
    assert orders.one("len", "orders")["length"] == 6
    assert digests(orders.directory) == before
