"""Archives: what is in one, stores restored from it, and a server that keeps one."""

import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from kvstream import Store
from kvstream.archive import merging
from kvstream.archive.archiver import Archiver
from kvstream.archive.format import piece_key
from kvstream.archive.history import read_history
from kvstream.archive.keys import Key
from kvstream.archive.objects import Folder, Found, open_objects
from kvstream.cli import main
from tests.cli.program import Program
from tests.cli.terminal import Terminal
from tests.cli.test_serving import port_of, served


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The folder of an archive with two snapshots, and the time of its only entry."""
    folder = tmp_path_factory.mktemp("archived")
    url = f"file://{folder}/archive"
    with Store.open(folder / "data", archive=url, durability="archive") as store:
        store.stream("orders").add({"n": "1"})
        time.sleep(0.15)
        then = time.time_ns() // 1_000_000
        time.sleep(0.15)
        store.stream("orders").add_many([{"n": "2"}] * 100)
        store.engine.flush()
        store.engine.archiving.archiver._snapshot()
        store.stream("orders").add({"n": "3"})
    return folder / "archive", then


@pytest.fixture
def bucket(archived: tuple[Path, int], tmp_path: Path) -> Path:
    """A copy of its folder."""
    return Path(shutil.copytree(archived[0], tmp_path / "bucket"))


def test_a_store_is_restored_at_a_moment_a_commit_and_the_end(
    kvstream: Program, tmp_path: Path, archived: tuple[Path, int]
) -> None:
    folder, then = archived
    url, moment = f"file://{folder}", f"{time.strftime('%F %T', time.gmtime(then // 1000))}"
    moment += f".{then % 1000:03d}"
    plan = kvstream.one("restore", url, str(tmp_path / "then"), "--at", moment, "--dry-run")
    assert plan["dry_run"]
    assert not (tmp_path / "then").exists()
    made = kvstream.one("restore", url, str(tmp_path / "then"), "--at", moment)
    assert made == {**plan, "dry_run": False}
    assert Program(tmp_path / "then").lines("len", "orders") == ["1"]
    kvstream("restore", url, str(tmp_path / "same"), "--lsn", str(made["lsn"]))
    assert Program(tmp_path / "same").lines("len", "orders") == ["1"]
    (shown,) = kvstream.lines("restore", url, str(tmp_path / "end"))
    assert shown.startswith(f"restored {tmp_path}/end as of 2")
    assert Program(tmp_path / "end").lines("len", "orders") == ["102"]
    assert Program(tmp_path / "end").lines("check") == ["sound"]


def test_an_archive_shows_its_moments_and_its_owner(
    kvstream: Program, archived: tuple[Path, int]
) -> None:
    url = f"file://{archived[0]}"
    rows = kvstream.json("archive", "ls", url)
    assert [row["kind"] for row in rows] == ["snapshot", "snapshot", "end"]
    assert [row["lsn"] for row in rows] == sorted(row["lsn"] for row in rows)
    assert not any(row["gap"] for row in rows)
    status = kvstream.one("archive", "status", url)
    assert status["lsn"] == rows[-1]["lsn"]
    assert str(archived[0].parent / "data") in status["owner"]
    assert (status["snapshots"], status["reaches_the_end"]) == (2, True)
    terminal = Terminal("archive", "ls", url)
    assert terminal.wait() == 0
    assert max(map(len, terminal.said.decode().splitlines())) <= 80


def test_status_and_ls_list_no_piece_that_is_merged(
    kvstream: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, listed = f"file://{tmp_path}/bucket", list[str]()
    monkeypatch.setattr(merging, "LEVELS", (4, 16))
    monkeypatch.setattr(Archiver, "_start_merging", lambda _: None)
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        archiver = store.engine.archiving.archiver
        for number in range(40):
            store.stream("orders").add({"n": str(number), "text": "x" * number})
            archiver.ship()
            if number in (12, 20):
                archiver._snapshot()
        archiver._merger.work()
        assert len(list(archiver._objects.list("log/"))) > 40
    plain = Folder.list

    def note(folder: Folder, prefix: str, after: str = "") -> Iterator[Found]:
        found = list(plain(folder, prefix, after))
        listed.extend(each.key for each in found if prefix in ("log/", "tables/"))
        yield from found

    monkeypatch.setattr(Folder, "list", note)
    for command in ("ls", "status"):
        assert CliRunner().invoke(main, ["archive", command, url]).exit_code == 0
    assert len(listed) <= 2 * 16
    monkeypatch.undo()
    rows, status = (kvstream.json("archive", name, url) for name in ("ls", "status"))
    sizes = {found.key: found.size for found in open_objects(url).list("log/")}
    merged = list(open_objects(url).list("merged/"))
    snapshots = read_history(open_objects(url)).snapshots
    assert status[0]["pieces"] == len(sizes) - snapshots[0].first_piece
    assert status[0]["merged_objects"] == len(merged) > 2
    assert sum(row["log_bytes"] for row in rows) == sum(
        size for key, size in sizes.items() if key >= piece_key(snapshots[0].piece)
    )


def test_the_url_may_be_in_the_environment(kvstream: Program, archived: tuple[Path, int]) -> None:
    shown = kvstream("archive", "status", env={"KVSTREAM_ARCHIVE": f"file://{archived[0]}"})
    assert "snapshots           2" in shown.stdout


def test_commits_without_the_archive_leave_a_gap(kvstream: Program, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    Store.open(tmp_path / "data", archive=url).close()
    Program(tmp_path / "data")("add", "orders", "n=1")
    Store.open(tmp_path / "data", archive=url).close()
    rows = kvstream.json("archive", "ls", url)
    assert [row["gap"] for row in rows] == [False, True, False]
    ms = rows[1]["time"] - 1
    moment = f"{time.strftime('%F %T', time.gmtime(ms // 1000))}.{ms % 1000:03d}"
    inside = kvstream("restore", url, str(tmp_path / "back"), "--at", moment, code=2).stderr
    assert re.search(r"has a gap: .* ends with commit 0, written about 2.*Z, .*--lsn 0", inside)
    assert kvstream.lines("archive", "verify", url)[-1].startswith("sound: 2 snapshots")


@pytest.mark.parametrize("kind", ["log", "snapshots", "tables"])
@pytest.mark.parametrize("harm", ["flip", "remove"])
def test_verify_names_damaged_and_missing_objects(
    kvstream: Program, bucket: Path, kind: str, harm: str
) -> None:
    url = f"file://{bucket}"
    before = kvstream("archive", "verify", url).stdout
    assert before.startswith("sound: 2 snapshots, ")
    path = sorted((bucket / kind).iterdir())[1 if kind == "log" else 0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if harm == "flip":
        path.write_bytes(bytes(data))
    else:
        path.unlink()
    if (kind, harm) == ("snapshots", "remove"):  # nothing leads to it: a later one is there
        kvstream("archive", "verify", url)
        return
    faults = kvstream.json("archive", "verify", url, code=4)
    assert [fault["object"] for fault in faults] == [f"{kind}/{path.name}"]
    assert ("missing" in faults[0]["message"]) == (harm == "remove")


def test_damage_stops_a_restore_with_advice(
    kvstream: Program, tmp_path: Path, bucket: Path
) -> None:
    next((bucket / "tables").iterdir()).unlink()
    shown = kvstream("restore", f"file://{bucket}", str(tmp_path / "back"), code=4).stderr
    assert "it is missing (show all damage with: kvstream archive verify URL" in shown
    assert not (tmp_path / "back").exists()


def test_a_store_goes_on_with_a_damaged_archive_after_a_restart(
    kvstream: Program, tmp_path: Path, bucket: Path, archived: tuple[Path, int]
) -> None:
    url, data = f"file://{bucket}", tmp_path / "data"
    shutil.copytree(archived[0].parent / "data", data)
    options = ["--port", "0", "--dir", str(data), "--archive", url]
    sound = kvstream("archive", "restart", url, str(data), "--yes", code=1).stderr
    assert "is sound" in sound
    path = max((bucket / "log").iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    stopped = kvstream("serve", *options, code=4).stderr
    assert f"log/{path.name}" in stopped
    assert "go on with: kvstream archive restart" in stopped
    key = f"log/{path.name}"
    shown = kvstream.one("archive", "restart", url, str(data), "--dry-run")
    assert (shown["damaged"], shown["dry_run"]) == ([key], True)
    kvstream("serve", *options, code=4)
    terminal = Terminal("archive", "restart", url, str(data))
    terminal.await_text(b"Go on from there?")
    terminal.type("y\n")
    assert terminal.wait() == 0
    with served(*options[2:], lines=4) as (_, lines):
        server = redis.Redis(port=port_of(lines), decode_responses=True)
        assert server.xlen("orders") == 102
        server.xadd("orders", {"n": "103"})
        blocked = kvstream("archive", "restart", url, str(data), code=3).stderr
        assert "holds the store" in blocked
    assert [each["object"] for each in kvstream.json("archive", "verify", url, code=4)] == [key]
    kvstream("restore", url, str(tmp_path / "back"))
    assert Program(tmp_path / "back").lines("len", "orders") == ["103"]


def test_prune_deletes_what_is_older(kvstream: Program, bucket: Path, tmp_path: Path) -> None:
    url = f"file://{bucket}"
    assert kvstream.one("archive", "prune", url, "--keep", "1d")["snapshots"] == 0
    terminal = Terminal("archive", "prune", url, "--keep", "0")
    terminal.await_text(b"Delete 1 snapshot, all that is older than 2")
    terminal.type("n\n")
    assert terminal.wait() == 1
    assert kvstream.one("archive", "prune", url, "--keep", "0", "--dry-run")["snapshots"] == 1
    (bucket / "pins" / f"{time.time_ns() // 1_000_000:016x}-somebody").touch()
    refused = kvstream("archive", "prune", url, "--keep", "0", code=1).stderr
    assert "somebody restores" in refused
    next((bucket / "pins").iterdir()).unlink()
    assert kvstream.one("archive", "prune", url, "--keep", "0")["snapshots"] == 1
    assert len(kvstream.json("archive", "ls", url)) == 2
    kvstream("archive", "verify", url)
    kvstream("restore", url, str(tmp_path / "back"))
    assert Program(tmp_path / "back").lines("len", "orders") == ["102"]


def test_errors_say_what_to_do(kvstream: Program, tmp_path: Path, bucket: Path) -> None:
    back, url = str(tmp_path / "back"), f"file://{bucket}"
    nothing = kvstream("archive", "ls", f"{url}x", code=1).stderr
    assert "look whether bucket and path are right" in nothing
    assert not Path(f"{bucket}x").exists()
    assert "s3://bucket/orders" in kvstream("restore", "bucket", back, code=2).stderr
    assert (
        "begins with commit" in kvstream("restore", url, back, "--at", "2020-01-01", code=2).stderr
    )
    assert "ends with commit" in kvstream("restore", url, back, "--lsn", "999999", code=2).stderr
    assert "KVSTREAM_ARCHIVE" in kvstream("archive", "ls", code=2).stderr
    both = kvstream("restore", url, back, "--lsn", "1", "--at", "now", code=2).stderr
    assert "either --at or --lsn" in both
    assert "is not empty" in kvstream("restore", url, str(bucket), code=5).stderr


def test_deleted_messages_come_back_as_the_page_says(
    kvstream: Program, tmp_path: Path, archived: tuple[Path, int]
) -> None:
    """The recipe of docs/archive.md: a stream that was deleted, and entries of one in use."""
    then, now = Program(tmp_path / "then"), Program(tmp_path / "now")
    for each in (then, now):
        kvstream("restore", f"file://{archived[0]}", str(each.directory))
    with Store.open(now.directory) as store:
        store.rename("orders", "gone")
        store.copy("gone", "emails")
        store.stream("emails").trim(maxlen=2)
        store.delete("gone")
    with Store.open(then.directory) as store:
        store.copy("orders", "emails")
    state = ["--state", str(tmp_path / "state"), "--quiet"]
    migration = ["run", str(then.directory), str(now.directory), "--match", "ord*", *state]
    result = CliRunner().invoke(main, ["migrate", *migration])
    assert result.exit_code == 0, result.output
    assert now.lines("range", "orders") == then.lines("range", "orders")
    kept = now.lines("export", "emails")
    lost = sorted(set(then.lines("export", "emails")) - set(kept))
    assert len(lost) == 100
    now("import", "emails", "--new-ids", "--source", "lost", input="".join(f"{x}\n" for x in lost))
    assert now.lines("len", "emails") == ["102"]
    assert now.lines("check") == ["sound"]


KEY, NEWER = "ab" * 32, "cd" * 32
KEY_ID = Key(bytes.fromhex(KEY)).id.hex()


def test_an_encrypted_archive_needs_its_key(kvstream: Program, tmp_path: Path) -> None:
    url, back = f"file://{tmp_path}/bucket", str(tmp_path / "back")
    with Store.open(tmp_path / "data", archive=url, archive_key=KEY) as store:
        store.stream("orders").add({"n": "1"})
    commands = [
        ["archive", "status", url],
        ["archive", "ls", url],
        ["archive", "verify", url],
        ["archive", "prune", url, "--keep", "7d"],
        ["restore", url, back, "--dry-run"],
    ]
    echo = f'{sys.executable} -c \'print("{NEWER}", "{KEY}")\''
    for command in commands:
        assert "is encrypted" in kvstream(*command, code=5).stderr
        wrong = kvstream(*command, "--archive-key", NEWER, code=5).stderr
        assert f"is encrypted with the key {KEY_ID}" in wrong
        kvstream(*command, "--archive-key", KEY)
        kvstream(*command, "--archive-key-command", echo)
        kvstream(*command, env={"KVSTREAM_ARCHIVE_KEY": f"{NEWER},{KEY}"})
        kvstream(*command, env={"KVSTREAM_ARCHIVE_KEY_COMMAND": echo})
        assert "is empty" in kvstream(*command, env={"KVSTREAM_ARCHIVE_KEY": ""}, code=2).stderr
        assert "32 bytes" in kvstream(*command, "--archive-key", "secret", code=2).stderr
    shown = kvstream("archive", "verify", url, "--archive-key", KEY).stdout
    assert re.search(rf"^sound: 1 snapshot, .*\nkey {KEY_ID}: \d+ objects$", shown.strip(), re.S)
    kvstream("restore", url, back, "--archive-key", KEY)
    assert Program(tmp_path / "back").lines("len", "orders") == ["1"]


# --- a server -------------------------------------------------------------------------------------


def test_another_machine_takes_over_what_a_server_has_acknowledged(
    kvstream: Program, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/bucket"
    options = ["--port", "0", "--archive", url, "--durability", "archive"]
    with kvstream.start("serve", "--dir", str(tmp_path / "one"), *options) as first:
        assert first.stdout is not None
        lines = [first.stdout.readline().decode().strip() for _ in range(4)]
        guarantee = "an acknowledged write survives the loss of the machine"
        assert lines[1:3] == [f"durability archive: {guarantee}", f"archive {url}: every 1.0 s"]
        one = redis.Redis(port=port_of(lines), decode_responses=True)
        for number in range(20):
            one.xadd("orders", {"n": number})
        info = one.info("persistence")
        assert (info["archive_state"], info["archive_lag_bytes"]) == ("follows", 0)
        assert info["archive_sequence"] >= 20
        assert one.config_get("appendfsync") == {"appendfsync": "always"}
        for level in ("everysec", "always"):
            one.config_set("appendfsync", level)
        assert one.info("persistence")["kvstream_durability"] == "archive"
        with served("--dir", str(tmp_path / "two"), *options, "--take-over", lines=4) as (_, lines):
            two = redis.Redis(port=port_of(lines), decode_responses=True)
            assert two.xlen("orders") == 20
            two.xadd("orders", {"n": 20})
            for _ in range(2):  # whose outcome is unknown, and one that is refused
                with pytest.raises(redis.ResponseError, match="taken over"):
                    one.xadd("orders", {"n": "lost"})
            assert one.xlen("orders") == 21, "reads go on"
            assert one.info("persistence")["archive_state"] == "taken"
        first.kill()
        assert first.communicate()[1].count(b"has taken over the archive") == 1
    kvstream("restore", url, str(tmp_path / "back"))
    assert Program(tmp_path / "back").lines("len", "orders") == ["21"]
    again = kvstream("serve", "--dir", str(tmp_path / "one"), *options, code=6).stderr
    assert again.endswith("; to keep this store, give another URL\n")


def test_a_server_encrypts_its_archive(kvstream: Program, tmp_path: Path) -> None:
    url, key = f"file://{tmp_path}/bucket", {"KVSTREAM_ARCHIVE_KEY": KEY}
    options = ["--dir", str(tmp_path / "data"), "--port", "0", "--archive", url]
    config = tmp_path / "kvstream.toml"
    config.write_text(f'archive-key = "{NEWER},{KEY}"\n')
    for more, env in ([], key), (["--config", str(config)], {}):
        with kvstream.start("serve", *options, *more, env=env) as server:
            assert server.stdout is not None
            lines = [server.stdout.readline().decode().strip() for _ in range(4)]
            assert lines[2] == f"archive {url}: every 1.0 s, encrypted"
            redis.Redis(port=port_of(lines)).xadd("orders", {"n": 1})
            server.terminate()
            assert KEY.encode() not in server.communicate()[1]
    assert "is encrypted" in kvstream("serve", *options, code=5).stderr
    kvstream("restore", url, str(tmp_path / "back"), "--archive-key", f"{NEWER} {KEY}")
    assert Program(tmp_path / "back").lines("len", "orders") == ["2"]


def test_a_server_without_an_archive_refuses_its_options(kvstream: Program) -> None:
    for option in ("--take-over", "--durability=archive", f"--archive-key={KEY}"):
        shown = kvstream("serve", "--port", "0", option, code=2).stderr
        assert "needs the URL of an archive: --archive URL" in shown
    for name in ("KVSTREAM_ARCHIVE", "KVSTREAM_ARCHIVE_KEY", "KVSTREAM_SERVE_ARCHIVE_KEY_COMMAND"):
        empty = kvstream("serve", "--port", "0", code=2, env={name: ""}).stderr
        assert f"{name} is empty" in empty
    assert "archive" in kvstream("--durability", "archive", "ls", code=2).stderr
