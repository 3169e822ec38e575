"""What differs between two stores, a server and archives, as `kvstream diff` shows it."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from kvstream import Store
from kvstream.archive.parts import Parts
from kvstream.cli import main
from kvstream.cli.migration import diff as diff_module
from kvstream.layout.keys import qualified
from kvstream.operations import strings
from tests.archive.conftest import wait_archived
from tests.cli.test_serving import port_of, served

ROOT = Path(__file__).parent.parent.parent


def diff(*words: str | Path, code: int) -> Result:
    result = CliRunner().invoke(main, ["diff", *map(str, words), "--quiet"], prog_name="kvstream")
    assert result.exit_code == code, result.output
    return result


def objects(*words: str | Path, code: int = 1) -> list[dict[str, Any]]:
    """Return the differences; the last line is the result."""
    *found, result = map(json.loads, diff(*words, "--json", code=code).stdout.splitlines())
    assert result["differences"] == len(found)
    return found


def rows(*words: str | Path, code: int = 1) -> list[tuple[str, str, str]]:
    """Return the change, the key and what differs, of each difference."""
    return [(each["change"], each["key"], each["what"]) for each in objects(*words, code=code)]


def put(store: Store, key: bytes, value: bytes) -> None:
    store.engine.run(strings.put, qualified(0, key), value)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two stores that are equal."""
    with Store.open(tmp_path / "a") as store:
        orders = store.stream("orders")
        for number in range(1, 11):
            orders.add({"n": str(number)}, id=(number, 0))
        orders.create_group("workers", start="0").consumer("ann").read(count=4)
        store.stream("mail").add({"to": "ann"}, id=(1, 0))
        put(store, b"lock", b"mine")
        assert store.check() == []
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    return tmp_path / "a", tmp_path / "b"


def change_entries(store: Store) -> None:
    orders = store.stream("orders")
    orders.delete("3-0")
    orders.add({"n": "11"}, id=(11, 0))


def replace_entries(store: Store) -> None:
    store.delete("mail")
    store.stream("mail").add({"to": "ben"}, id=(1, 0))


def acknowledge(store: Store) -> None:
    store.stream("orders").group("workers").ack("2-0")


def read_more(store: Store) -> None:
    store.stream("orders").group("workers").consumer("ben").read(count=1)


def lose_the_group(store: Store) -> None:
    store.stream("orders").group("workers").destroy()


CHANGES: list[tuple[Callable[[Store], object], list[tuple[str, str, str]]]] = [
    (lambda store: store.delete("mail"), [("missing", "mail", "key")]),
    (lambda store: store.stream("new").add({"a": "b"}), [("added", "new", "key")]),
    (
        change_entries,
        [
            ("changed", "orders", "last ID"),
            ("changed", "orders", "greatest deleted ID"),
            ("changed", "orders", "entries added"),
            ("missing", "orders", "entry 3-0"),
            ("added", "orders", "entry 11-0"),
        ],
    ),
    (replace_entries, [("changed", "mail", "entry 1-0")]),
    (acknowledge, [("missing", "orders", "group 'workers', pending 2-0")]),
    (
        read_more,
        [
            ("changed", "orders", "group 'workers', last delivered ID"),
            ("changed", "orders", "group 'workers', entries read"),
            ("added", "orders", "group 'workers', consumer 'ben'"),
            ("added", "orders", "group 'workers', pending 5-0"),
        ],
    ),
    (lose_the_group, [("missing", "orders", "group 'workers'")]),
    (lambda store: put(store, b"lock", b"yours"), [("changed", "lock", "value")]),
    (lambda store: store.delete("lock"), [("missing", "lock", "key")]),
    (lambda store: store.expire("orders", 1000), [("changed", "orders", "expiry")]),
]


def test_equal_stores_do_not_differ(pair: tuple[Path, Path]) -> None:
    shown = diff(*pair, code=0).stdout
    assert shown == "equal: 3 keys, 11 entries\n"
    assert rows(*pair, code=0) == []


@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_each_difference_is_shown_in_both_directions(
    pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Store], object],
    expected: list[tuple[str, str, str]],
) -> None:
    one, other = pair
    with Store.open(other) as store:
        change(store)
        assert store.check() == []
    assert rows(one, other) == expected
    swapped = {"missing": "added", "added": "missing", "changed": "changed"}
    back = [(swapped[how], key, what) for how, key, what in expected]
    assert sorted(rows(other, one)) == sorted(back)
    monkeypatch.setattr(diff_module, "KEYS_KEPT", 1)
    assert rows(one, other) == expected


def test_lines_have_signs_and_the_last_one_a_verdict(pair: tuple[Path, Path]) -> None:
    with Store.open(pair[1]) as store:
        store.delete("mail")
        change_entries(store)
    lines = diff(*pair, code=1).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["~", "~", "~", "-", "+", "-"]
    assert lines[-1] == "different: 6 differences in 3 keys, 11 entries"


def test_streams_are_chosen_and_entries_limited(pair: tuple[Path, Path]) -> None:
    with Store.open(pair[1]) as store:
        store.delete("mail")
        store.stream("orders").trim(maxlen=0)
    assert rows(*pair, "--stream", "ma*") == [("missing", "mail", "key")]
    entries = [what for _, _, what in rows(*pair, "--stream", "orders") if "entry " in what]
    assert len(entries) == 10
    few = rows(*pair, "--stream", "orders", "--entries", "2")
    assert [what for _, _, what in few if "entr" in what][-3:] == [
        "entry 1-0",
        "entry 2-0",
        "entries",
    ]


def test_trouble_has_the_exit_code_2(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert "nothing at" in diff(pair[0], tmp_path / "nothing", code=2).stderr
    assert "both are the same place" in diff(pair[0], pair[0], code=2).stderr
    assert "--at is for archives" in diff(*pair, "--at", "1h ago", code=2).stderr
    with Store.open(pair[1]):
        assert "has the store in" in diff(*pair, code=2).stderr
    empty = f"file://{tmp_path}/empty"
    assert "has no snapshot yet" in diff(empty, pair[0], code=2).stderr
    words = ["--store", str(pair[0]), "diff", *map(str, pair)]
    assert "cannot be used before diff" in CliRunner().invoke(main, words).stderr


# --- archives -------------------------------------------------------------------------------------


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


def archive(directory: Path, url: str) -> str:
    """Keep a store in an archive; return a moment behind which its streams were deleted from."""
    with Store.open(directory, archive=url) as store:
        for key in ("orders:1", "orders:2", "emails"):
            for number in range(1, 21):
                store.stream(key).add({"n": f"{key} {number}"}, id=(number, 0))
        store.stream("orders:1").create_group("workers", start="0").consumer("ann").read(count=3)
        wait_archived(store)
        time.sleep(0.3)
        then = time.time_ns() // 1_000_000
        time.sleep(0.3)
        store.delete("orders:1")
        store.stream("emails").delete("5-0", "7-0")
        store.stream("emails").add({"n": "since"}, id=(30, 0))
    shown = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(then // 1000))
    return f"{shown}.{then % 1000:03d}"


def test_moments_of_archives_are_compared(tmp_path: Path, url: str) -> None:
    data = tmp_path / "data"
    at = archive(data, url)
    assert rows(url, data, code=0) == []
    found = rows(url, data, "--at", at)
    assert ("missing", "orders:1", "key") in found
    assert [each for each in found if "entry" in each[2]] == [
        ("missing", "emails", "entry 5-0"),
        ("missing", "emails", "entry 7-0"),
        ("added", "emails", "entry 30-0"),
    ]
    assert {key for _, key, _ in found} == {"orders:1", "emails"}
    assert rows(url, url, "--at", at) == found
    assert rows(url, url, "--at", at, "--at", "now") == found
    assert "both are the same place" in diff(url, url, "--at", at, "--at", at, code=2).stderr
    entries = [each["entry"] for each in objects(url, data, "--at", at) if each["entry"]]
    assert entries[0] == {"id": "5-0", "fields": {"n": "emails 5"}}


def test_an_encrypted_archive_is_compared(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSTREAM_ARCHIVE_KEY", "ab" * 32)
    data = tmp_path / "data"
    at = archive(data, url)
    assert ("missing", "orders:1", "key") in rows(url, data, "--at", at, "--stream", "*:1")
    assert rows(url, data, code=0) == []


def test_only_what_the_chosen_streams_need_is_fetched(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, names = tmp_path / "data", list[str]()
    with Store.open(data, rocksdb={"target_file_size_base": "1M"}) as store:
        for key in ("orders", "others:1"):
            store.stream(key).add_many([{"n": os.urandom(1000)} for _ in range(2000)])
            store.compact()
    with Store.open(data, archive=url):
        pass
    fetch = Parts._fetch_one

    def noted(self: Parts, name: str) -> Path:
        names.append(name)
        return fetch(self, name)

    monkeypatch.setattr(Parts, "_fetch_one", noted)
    assert rows(url, data, "--stream", "orders", code=0) == []
    chosen = set(names)
    assert rows(url, data, code=0) == []
    assert chosen < set(names)


def test_the_recipe_of_a_bad_deploy_runs_as_printed(tmp_path: Path, url: str) -> None:
    if shutil.which("jq") is None:
        pytest.skip("needs jq")
    at = archive(tmp_path / "data", url)
    page = (ROOT / "docs" / "archive.md").read_text()
    section = page[page.index("## A bad deploy") : page.index("## Look at the past")]
    look, restore = re.findall(r"^```\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    with served("--dir", str(tmp_path / "data"), "--port", "0") as (_, lines):
        port = port_of(lines)

        def run(block: str) -> subprocess.CompletedProcess[str]:
            for old, new in (
                ("s3://backups/orders", url),
                ("127.0.0.1:6379", f"127.0.0.1:{port}"),
                ("2026-11-29 11:59:59", at),
                ("less ", "cat "),
                ("kvstream ", f"{sys.executable} -m kvstream "),
            ):
                assert old in block or old == "less "
                block = block.replace(old, new)
            environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
            return subprocess.run(
                ["bash", "-ec", block],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
            )

        shown = run(look)
        assert shown.returncode == 1
        assert re.fullmatch(rf"{url}: as of [-\d]+ [.:\d]+Z, commit \d+\n", shown.stderr)
        assert "entry 5-0" in shown.stdout
        done = run(restore)
        assert done.returncode == 0, done.stderr
        client = redis.Redis(port=port, decode_responses=True)
        assert [fields for _, fields in client.xrange("emails") or ()][-2:] == [
            {"n": "emails 5"},
            {"n": "emails 7"},
        ]
        assert client.xlen("orders:1") == 20
        assert client.xpending("orders:1", "workers")["pending"] == 3
        assert client.xlen("orders:2") == 20
        client.close()
    with Store.open(tmp_path / "data") as store:
        assert store.check() == []
