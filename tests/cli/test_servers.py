"""``--url``: behaviour on servers only. What stores share is tested with the stores."""

import json
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result
from redis import exceptions

import kvstream as library
from kvstream import Entry, RequestError, ServerTooOld, Store, Stream, StreamID, UnknownOutcome
from kvstream.cli import main, session
from kvstream.cli.exit_codes import ExitCode, code_of
from kvstream.cli.session import atomically
from kvstream.remote import connection
from kvstream.remote.connection import Connection, connect
from kvstream.remote.replies import stream_info_of
from kvstream.remote.server_errors import error_of
from tests.cli.program import FIRST, Program, RemoteProgram, completed
from tests.cli.test_processes import ended, read_line
from tests.patience import until
from tests.ports import free_port
from tests.server.conftest import Served
from tests.server.net.authorities import Authority

pytestmark = pytest.mark.places("server", "redis")

SECRET, QUOTED = "s%3Acr@et", "s%253Acr%40et"
"""A password, and its encoded form in a URL."""


def run(*words: str, **env: str) -> Result:
    """Run the program with only these words and this environment."""
    named: dict[str, str | None] = {"KVSTREAM_STORE": None, "KVSTREAM_URL": None, **env}
    return CliRunner().invoke(main, words, env=named, prog_name="kvstream")


def refusal(*words: str, code: int, **env: str) -> str:
    """Run the program, and return the last line of its errors."""
    result = run(*words, **env)
    assert result.exit_code == code, result.output
    return result.stderr.splitlines()[-1]


def url_of(program: Program) -> str:
    assert isinstance(program, RemoteProgram)
    return program.url


@contextmanager
def client_of(program: Program) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(url_of(program)) as client:
        yield client


def has_length(client: "redis.Redis", key: str, least: int) -> bool:
    return int(client.execute_command("XLEN", key)) >= least  # type: ignore[no-untyped-call]


@contextmanager
def store_of(program: Program, query: str = "") -> Iterator[Store]:
    with library.open(url_of(program) + query) as store:
        yield store


# --- which place ----------------------------------------------------------------------------------


def test_the_url_may_be_in_the_environment(orders: Program) -> None:
    assert "orders:2025" in run("ls", KVSTREAM_URL=url_of(orders)).stdout


def test_the_command_line_overrides_the_environment(orders: Program, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    url = url_of(orders)
    assert "orders" in run("--url", url, "ls", KVSTREAM_STORE=missing).stdout
    assert "no store in" in refusal("--store", missing, "ls", code=5, KVSTREAM_URL=url)
    both = {"KVSTREAM_STORE": missing, "KVSTREAM_URL": url}
    assert "either --store" in refusal("ls", code=2, **both)
    assert "either --store" in refusal("--store", missing, "--url", url, "ls", code=2)


def test_a_database_is_named_by_the_url_or_by_the_option(orders: Program) -> None:
    url = url_of(orders)
    assert run("--url", f"{url}/3", "add", "three", "a=1").exit_code == 0
    assert run("--url", url, "--db", "3", "len", "three").stdout == "1\n"
    assert run("--url", f"{url}/2", "--db", "3", "len", "three").stdout == "1\n"
    assert "in database 2" in refusal("--url", f"{url}/2", "len", "three", code=1)
    assert "out of range" in refusal("--url", f"{url}/99", "ls", code=1)


@pytest.mark.parametrize("query", ["protocol=3", "decode_responses=True"])
def test_options_of_the_client_in_the_url_do_not_change_the_output(
    orders: Program, query: str
) -> None:
    shown = run("--url", f"{url_of(orders)}?{query}", "range", "orders", "-n", "1", "--json").stdout
    assert json.loads(shown) == {"id": FIRST, "fields": {"sku": "a0", "qty": "0"}}


def test_the_shell_completes_the_names_on_a_server(orders: Program) -> None:
    assert sorted(completed("--url", url_of(orders))) == ["orders", "orders:2025"]
    assert completed("--url", "redis://127.0.0.1:1") == []


# --- what goes wrong on the way -------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1",
        f"redis://:{SECRET}#1@127.0.0.1",
        f"redis://:{QUOTED}@127.0.0.1:port",
        f"redis://:{QUOTED}@127.0.0.1/first",
        f"redis://:{QUOTED}@127.0.0.1?socket_timeout=x",
        f"redis://:{QUOTED}@127.0.0.1?nonsense=1",
        f"redis://:{QUOTED}@{'a' * 70}",
    ],
)
@pytest.mark.places("server")
def test_an_invalid_url_is_refused_and_not_shown(url: str) -> None:
    shown = refusal("--url", url, "ls", code=2)
    assert "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]" in shown
    assert "cr" not in shown


@pytest.mark.places("server")
def test_the_error_without_a_server_names_the_address(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # but does not listen
        port = taken.getsockname()[1]
        shown = refusal("--url", f"redis://:{QUOTED}@127.0.0.1:{port}", "ls", code=5)
    assert shown == f"Error: no connection to 127.0.0.1:{port}: Connection refused"
    path = tmp_path / "none.sock"
    shown = refusal("--url", f"unix://{path}", "ls", code=5)
    assert shown == f"Error: no connection to {path}: No such file or directory"


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
@pytest.mark.places("server")
def test_a_listener_that_never_replies_is_no_server(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = f"{scheme}://127.0.0.1:{port}?socket_timeout=0.2"
        assert "the server does not answer: Timeout" in refusal("--url", url, "ls", code=5)


def test_a_wrong_password_is_refused_and_not_shown(orders: Program) -> None:
    with client_of(orders) as client:
        client.acl_setuser("reader", enabled=True, passwords=[f"+{SECRET}"], commands=["+@all"])
    host = url_of(orders).removeprefix("redis://")
    for user in ("reader:wrong", f"nobody:{QUOTED}"):
        shown = refusal("--url", f"redis://{user}@{host}", "ls", code=5)
        assert "without the right password" in shown
        assert "wrong@" not in shown
        assert "cr" not in shown
    shown = refusal("--url", f"redis://reader:{QUOTED}@{host}", "range", "orders", code=1)
    assert re.search("permissions to access .* key", shown)


def test_a_server_with_a_password_refuses_clients_without_it(serve_with_password: str) -> None:
    host = serve_with_password
    assert "Authentication required" in refusal("--url", f"redis://{host}", "ls", code=5)
    assert run("--url", f"redis://:{QUOTED}@{host}", "add", "s", "a=1").exit_code == 0


@pytest.fixture
def serve_with_password(place: str, tmp_path: Path) -> Iterator[str]:
    """Host and port of a server of kvstream; Redis is not needed."""
    served = Served(tmp_path / "secret", requirepass=SECRET)
    yield f"127.0.0.1:{served.port}"
    served.stop()


def test_a_missing_right_is_reported_without_the_values(orders: Program) -> None:
    with client_of(orders) as client:
        client.acl_setuser(
            "reader", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-xadd"]
        )
    url = url_of(orders).replace("redis://", "redis://reader:pw@")
    assert run("--url", url, "len", "orders").stdout == "5\n"
    result = CliRunner().invoke(main, ["--url", url, "import", "s"], input='{"a": "precious"}\n')
    assert result.exit_code == 1
    assert "xadd" in result.stderr
    assert "precious" not in result.stderr


@pytest.mark.places("redis")
def test_a_user_without_ping_may_run_other_commands(orders: Program) -> None:
    with client_of(orders) as client:
        commands = ["+xlen", "+exists", "+type"]
        client.acl_setuser("few", enabled=True, nopass=True, keys=["*"], commands=commands)
    url = url_of(orders).replace("redis://", "redis://few:x@")
    assert run("--url", url, "len", "orders").stdout == "5\n"


def test_a_write_without_a_reply_has_an_unknown_outcome(orders: Program) -> None:
    with closing(Connection(connect(url_of(orders)))) as connection:
        connection.greet()
        (link,) = connection._free
        link._connection._sock.settimeout(0.5)  # not less: a connection may take longer
        with pytest.raises(UnknownOutcome, match="may or may not have done it"):
            connection.do("WAIT", 1, 60_000)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (exceptions.MovedError("3999 127.0.0.1:6381"), 5, "another node of the cluster"),
        (exceptions.BusyLoadingError("Redis is loading"), 5, "still loading"),
        (exceptions.ReadOnlyError("You can't write"), 5, "You can't write"),
        (exceptions.OutOfMemoryError("command not allowed"), 5, "command not allowed"),
        (exceptions.ResponseError("MISCONF errors writing"), 5, "errors writing"),
        (exceptions.ResponseError("NOGROUP No such key"), 1, "No such key"),
        (exceptions.ResponseError("no such key"), 1, "no such key"),
        (exceptions.InvalidResponse("Protocol Error"), 1, "Protocol Error"),
        (exceptions.ConnectionError(), 5, "ConnectionError"),
    ],
)
@pytest.mark.places("server")
def test_each_error_has_its_exit_code(error: redis.RedisError, code: int, said: str) -> None:
    reply = error_of(error)
    assert code_of(reply) == code
    assert said in str(reply)


@pytest.mark.places("server")
def test_without_redis_py_the_error_explains_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    shown = refusal("--url", "redis://127.0.0.1", "ls", code=5)
    assert "pip install 'kvstream-db[server]'" in shown
    assert completed("--url", "redis://127.0.0.1") == []


@pytest.mark.places("server")
def test_a_server_is_reached_by_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    host, client = authority.certify("localhost"), authority.certify("client")
    files = {"tls_cert_file": host.certificate, "tls_key_file": host.key}
    options = {**files, "tls_ca_cert_file": authority.certificate}
    served = Served(tmp_path / "store", tls=True, **{k: Path(v) for k, v in options.items()})
    url = f"rediss://localhost:{served.tls_port}?ssl_ca_certs={authority.certificate}"
    mine = f"&ssl_certfile={client.certificate}&ssl_keyfile={client.key}"
    assert run("--url", url + mine, "add", "s", "a=1", "--id", "1-0").stdout == "1-0\n"
    assert refusal("--url", url, "len", "s", code=5).startswith("Error: the server ")
    strangers = url.partition("?")[0]
    assert "CERTIFICATE_VERIFY_FAILED" in refusal("--url", strangers, "len", "s", code=5)
    missing = f"{strangers}?ssl_ca_certs={tmp_path}/none.pem"
    assert f"cannot be read: {tmp_path}/none.pem" in refusal("--url", missing, "ls", code=2)
    served.stop()


# --- what a server is not, or lacks ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["check"], "--store DIR, not --url"),
        (["recover"], "--store DIR, not --url"),
        (["serve"], "--store DIR, not --url"),
        (["checkpoint", "there"], "leave NEW_DIRECTORY out"),
        (["bench", "--directory", "."], "not --url"),
    ],
)
def test_commands_that_need_the_files_of_a_store_are_refused(
    orders: Program, words: list[str], hint: str
) -> None:
    shown = orders(*words, code=2).stderr
    assert hint in shown.splitlines()[-1]


def test_the_durability_is_set_by_the_server(orders: Program) -> None:
    shown = refusal("--url", url_of(orders), "--durability", "always", "ls", code=2)
    assert "was chosen when it started" in shown


@pytest.mark.places("redis")
@pytest.mark.parametrize(
    ("words", "needs"),
    [
        (["del", "orders", FIRST, "--ref-policy", "acked"], "XDELEX needs Redis 8.2"),
        (["ack", "orders", "billing", FIRST, "--delete"], "XACKDEL needs Redis 8.2"),
    ],
)
def test_the_error_for_an_older_server_names_the_needed_version(
    orders: Program, words: list[str], needs: str
) -> None:
    shown = orders(*words, code=1).stderr
    assert shown.startswith(f"Error: {needs} or kvstream: the server at 127.0.0.1:")
    assert len(shown.splitlines()) == 1


@pytest.mark.places("redis")
def test_other_types_are_listed_as_keys_and_not_as_streams(orders: Program) -> None:
    with client_of(orders) as client:
        client.hset("cart", "sku", "a1")
    assert "'cart' is a hash, not a stream" in orders("range", "cart", code=1).stderr
    assert "'cart' is a hash, not a stream" in orders("import", "cart", code=1, input="").stderr
    shown = orders.lines("ls", "cart")[1].split()
    assert (shown[:4], shown[-4:]) == (["cart", "-", "-", "-"], ["-", "never", "hash", "-"])


def test_a_server_before_redis_7_is_refused_as_too_old() -> None:
    known = [b"length", 0, b"radix-tree-keys", 0, b"radix-tree-nodes", 1]
    with pytest.raises(ServerTooOld, match="max-deleted-entry-id: it is older than Redis 7"):
        stream_info_of([*known, b"last-generated-id", b"0-0", b"groups", 0])


# --- care -----------------------------------------------------------------------------------------


@pytest.mark.places("server", "redis")
def test_a_checkpoint_is_a_save_of_the_server(orders: Program) -> None:
    with client_of(orders) as client:
        client.xadd("orders", {"a": 1})
        assert client.info("persistence")["rdb_changes_since_last_save"] > 0
        path = orders.one("checkpoint")["path"]
        assert path == client.config_get("dir")["dir"]
        assert client.info("persistence")["rdb_changes_since_last_save"] == 0
    assert orders.lines("checkpoint") == [f"saved by the server in {path}"]


def test_a_server_that_hides_its_settings_still_saves(orders: Program) -> None:
    with client_of(orders) as client:
        commands = ["+@all", "-config"]
        client.acl_setuser("few", enabled=True, nopass=True, keys=["*"], commands=commands)
    url = url_of(orders).replace("redis://", "redis://few:x@")
    assert run("--url", url, "checkpoint").stdout == "saved by the server in its directory\n"


@pytest.mark.places("server")
def test_compact_compacts_on_the_server(orders: Program) -> None:
    assert orders.one("compact")["after_bytes"] > 0


@pytest.mark.places("redis")
def test_a_server_without_a_log_has_nothing_to_compact(orders: Program) -> None:
    assert "has no append-only file" in orders("compact", code=1).stderr


def test_stats_show_the_values_of_info(orders: Program) -> None:
    stats = orders.one("stats")
    assert stats["streams"] == 2
    assert stats["server"]["redis_mode"] == "standalone"
    assert stats["clients"]["connected_clients"] >= 1
    lines = orders.lines("stats")
    assert "server" in lines
    assert any(line.split() == ["redis", "mode", "standalone"] for line in lines)


def test_bench_measures_over_the_connection_and_leaves_nothing(orders: Program) -> None:
    rows = orders.json("bench", "--entries", "1000")
    assert [row["entries"] for row in rows] == [1000, 1000, 1000, 1000, 200]
    assert len(orders.json("ls", "--all")) == 2
    assert orders.lines("bench", "--entries", "1000")[-1] == "over one connection to the server"


# --- streams --------------------------------------------------------------------------------------


def test_entries_of_any_number_and_size_are_complete(
    kvstream: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PAGE_BYTES", 1000)
    with client_of(kvstream) as client:
        for size in (*[1] * 30, *[400] * 30, *[5000] * 3, *[1] * 30):
            client.xadd("s", {"x": "x" * size})
    asked: list[Any] = []
    with store_of(kvstream) as store:
        stream = store.stream("s")
        original = Stream._scan

        def counted(stream: Stream, start: StreamID, end: StreamID, count: int) -> list[Entry]:
            asked.append(count)
            return original(stream, start, end, count)

        monkeypatch.setattr(Stream, "_scan", counted)
        sizes = [len((entry.fields or {})[b"x"]) for entry in stream.scan()]
    assert sizes == [*[1] * 30, *[400] * 30, *[5000] * 3, *[1] * 30]
    assert 1 in asked
    assert max(asked) > 10


def test_a_long_stream_is_shown_completely_in_both_directions(kvstream: Program) -> None:
    with store_of(kvstream) as store:
        store.stream("s").add_many([{"n": str(at)} for at in range(2500)])
    lines = kvstream.lines("range", "s")
    assert [line.split()[-1] for line in lines[1:]] == [f"n={at}" for at in range(2500)]
    assert [line.split()[-1] for line in kvstream.lines("revrange", "s")[1:]] == [
        f"n={at}" for at in reversed(range(2500))
    ]


def test_repeated_and_binary_fields_are_unchanged(kvstream: Program) -> None:
    kvstream("add", "s", "a=1", "a=2", "b=\udcff", "--id", "1-1")
    with store_of(kvstream) as store:
        (entry,) = store.stream("s").scan()
    assert entry.pairs == ((b"a", b"1"), (b"a", b"2"), (b"b", b"\xff"))


def test_an_unknown_backlog_is_counted_up_to_a_limit(orders: Program) -> None:
    orders("group", "setid", "orders", "billing", "1700000001000-0")
    row = orders.json("group", "ls", "orders")[0]
    assert (row["lag"], row["backlog"]) == (None, 3)
    with store_of(orders) as store:
        store.stream("orders").add_many([{"n": 1}] * session.COUNTED_MAX)
    assert orders.json("group", "ls", "orders")[0]["backlog"] is None
    reset = ("group", "reset", "orders", "billing", "--to", "1700000001000-0", "--keep-pending")
    assert "unknown entries to deliver (before: unknown)" in orders.lines(*reset, "--dry-run")[0]


def test_work_is_repeated_after_concurrent_writes(orders: Program) -> None:
    runs: list[StreamID] = []

    with store_of(orders) as store, client_of(orders) as other:

        def work() -> int:
            runs.append(store.stream("orders").info().last_generated_id)
            if len(runs) == 1:
                other.xadd("orders", {"n": "theirs"})
            store.stream("orders").add({"n": "ours"})
            store.persist("orders")
            return len(runs)

        assert atomically(store, work) == 2
        assert runs[1] > runs[0]
        last = store.stream("orders").revrange(count=2)
        assert [entry.fields for entry in last] == [{b"n": b"ours"}, {b"n": b"theirs"}]
        assert store.ttl(b"orders") is None


def test_rows_without_ids_are_written_beside_other_writers(
    kvstream: Program, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"n": {number}}}\n' for number in range(3000)))
    over = threading.Event()

    def write() -> None:
        with client_of(kvstream) as client:
            while not over.is_set():
                client.xadd("s", {"other": 1})

    writing = threading.Thread(target=write)
    writing.start()
    try:
        assert kvstream.one("import", "s", str(path))["added"] == 3000
    finally:
        over.set()
        writing.join()
    with store_of(kvstream) as store:
        rows = [entry.fields or {} for entry in store.stream("s").scan()]
    assert [int(row[b"n"]) for row in rows if b"n" in row] == list(range(3000))


def test_work_is_given_up_after_too_many_concurrent_writes(orders: Program) -> None:
    with store_of(orders) as store, client_of(orders) as other:

        def work() -> None:
            assert store.exists("orders")
            other.xadd("orders", {"n": "theirs"})
            store.persist("orders")

        with pytest.raises(RequestError, match="others write to the same stream all the time"):
            atomically(store, work)
        assert len(store.stream("orders")) == 5 + session.TRIES
        assert store.ttl(b"orders") is not None


# --- what takes long ------------------------------------------------------------------------------


def test_a_killed_import_resumes_without_loss_or_duplicates(
    kvstream: Program, tmp_path: Path
) -> None:
    rows = 20_000
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"n": {number}}}\n' for number in range(rows)))
    with client_of(kvstream) as client:
        for key in "stuv":  # each is an attempt: on a busy machine the kill may be late
            for least in (1, 5_000):
                with ended(kvstream.start("import", key, str(path))) as process:
                    until(partial(has_length, client, key, least))
                    process.kill()
            if client.xlen(key) < rows:
                break
        assert client.xlen(key) < rows
        kvstream("import", key, str(path))
    with store_of(kvstream) as store:
        numbers = [int((entry.fields or {})[b"n"]) for entry in store.stream(key).scan()]
    assert numbers == list(range(rows))


@pytest.mark.places("server")
def test_tail_continues_when_the_server_is_back(tmp_path: Path) -> None:
    program = Program(tmp_path / "store")
    port = free_port()
    program("add", "s", "n=0", "--id", "1-0")
    url = f"redis://127.0.0.1:{port}"
    remote = RemoteProgram(tmp_path / "store", url)
    serve = ("serve", "--port", str(port))
    with ended(program.start(*serve)) as server:
        assert read_line(server)
        tail = remote.start("tail", "s", "-f", "--poll", "50ms", "--json")
        assert json.loads(read_line(tail))["id"] == "1-0"
    with ended(tail):
        assert tail.stderr is not None
        assert tail.stderr.readline().startswith(b"waiting: ")
        with ended(program.start(*serve)) as server:
            assert read_line(server)
            assert remote.one("add", "s", "n=1", "--id", "2-0") == {"id": "2-0"}
            assert json.loads(read_line(tail))["id"] == "2-0"


def test_a_blocked_read_is_woken_by_a_new_entry(orders: Program) -> None:
    def add_soon() -> None:
        with client_of(orders) as client:
            while client.info("clients")["blocked_clients"] == 0:
                pass
            client.xadd("orders", {"n": "new"})

    adding = threading.Thread(target=add_soon)
    adding.start()
    wanted = ("--group", "late", "--consumer", "c", "--block", "30s")
    orders("group", "create", "orders", "late")
    assert orders.one("read", "orders", *wanted)["fields"] == {"n": "new"}
    adding.join()


def test_a_blocked_read_of_the_history_gives_up_at_its_deadline(orders: Program) -> None:
    history = ("--group", "billing", "--consumer", "idle-worker", "--history", "--block", "50ms")
    assert orders("read", "orders", *history, code=int(ExitCode.FAILED)).stdout == ""
