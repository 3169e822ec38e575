"""Rights that change while a command waits, is queued or runs: those at its end apply."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream.types.clock import ManualClock
from tests.patience import until
from tests.server.asking import Asker, Failure
from tests.server.conftest import Serve, Served
from tests.server.talking import Other, Server, Talker, Worker, sound

ALL = ("~*", "&*", "+@all")
GROUP = "XREADGROUP GROUP g c BLOCK 0 STREAMS a:1 >"
READ = "XREAD BLOCK 0 STREAMS a:1 $"
NEWS = "XADD a:1 1-1 f v"
NO_KEY = Failure("NOPERM No permissions to access a key")
CHANGED = (
    "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC "
    "call. This command is no longer allowed for the following reason: "
)


def _no_command(name: str) -> Failure:
    return Failure(f"NOPERM User u has no permissions to run the '{name}' command")


def _log_in(served: Served, *rules: str) -> Asker:
    """Return a connection of a user with these rules."""
    with served.asker() as admin:
        assert admin.ask("ACL", "SETUSER", "u", "reset", "on", ">secret", *rules) == b"OK"
    asker = served.asker()
    assert asker.ask("AUTH u secret") == b"OK"
    return asker


def _wait(admin: Asker, asker: Asker, line: str, blocked: int = 1) -> None:
    """Send a blocking command, and return once the client is blocked."""
    asker.send(*line.split())
    until(lambda: b"blocked_clients:%d\r\n" % blocked in admin.ask("INFO clients"))


@pytest.fixture
def admin(served: Served) -> Iterator[Asker]:
    with served.asker() as asker:
        asker.ask("XGROUP CREATE a:1 g 0 MKSTREAM")
        yield asker


@pytest.mark.parametrize(
    ("line", "rules", "change", "answer"),
    [
        (GROUP, ALL, "-@all", _no_command("xreadgroup")),
        (GROUP, ALL, "-xreadgroup", _no_command("xreadgroup")),
        (GROUP, ALL, "resetkeys", NO_KEY),
        (GROUP, ALL, "resetkeys %W~*", NO_KEY),
        (GROUP, ("+@all", "(~a:* +@all)"), "clearselectors", NO_KEY),
        (READ, ALL, "-@all", _no_command("xread")),
        (READ, ALL, "resetkeys", NO_KEY),
        (READ, ALL, "resetkeys %W~*", NO_KEY),
        ("XREAD BLOCK 0 STREAMS a:1 b:1 $ $", ALL, "resetkeys ~a:*", NO_KEY),
    ],
)
def test_a_blocked_read_is_refused_after_the_loss_of_rights(
    served: Served, admin: Asker, line: str, rules: tuple[str, ...], change: str, answer: Failure
) -> None:
    with _log_in(served, *rules) as asker:
        _wait(admin, asker, line)
        assert admin.ask(f"ACL SETUSER u {change}") == b"OK"
        assert admin.ask(NEWS) == b"1-1"
        assert asker.read() == answer
        assert admin.ask("XPENDING a:1 g")[0] == 0  # no entry was delivered


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (GROUP, "off"),
        (GROUP, "resetpass"),
        (GROUP, "resetkeys %R~*"),
        (GROUP, "-@all +@all"),
        (GROUP, "resetkeys (~a:* +xreadgroup)"),
        (READ, "-@all +@read"),
        (READ, "resetkeys %R~a:*"),
    ],
)
def test_a_blocked_read_is_served_while_its_user_has_rights(
    served: Served, admin: Asker, line: str, change: str
) -> None:
    with _log_in(served, *ALL) as asker:
        _wait(admin, asker, line)
        assert admin.ask(f"ACL SETUSER u {change}") == b"OK"
        assert admin.ask(NEWS) == b"1-1"
        assert asker.read() == [[b"a:1", [[b"1-1", [b"f", b"v"]]]]]


@pytest.mark.parametrize(
    "news", ["DEL a:1", "RENAME a:1 b:1", "SWAPDB 0 1", "XGROUP DESTROY a:1 g", "SET a:1 x"]
)
def test_a_client_without_read_rights_is_not_told_of_a_deleted_stream(
    served: Served, admin: Asker, news: str
) -> None:
    with _log_in(served, *ALL) as asker:
        _wait(admin, asker, GROUP)
        admin.ask("ACL SETUSER u -@all")
        admin.ask(news)
        assert asker.read() == _no_command("xreadgroup")


def test_the_refusal_is_in_the_log_and_in_the_statistics(served: Served, admin: Asker) -> None:
    with _log_in(served, *ALL) as asker:
        _wait(admin, asker, GROUP)
        admin.ask("ACL SETUSER u resetkeys")
        admin.ask(NEWS)
        assert asker.read() == NO_KEY
        [entry] = admin.ask("ACL LOG")
        reply = dict(zip(entry[::2], entry[1::2], strict=True))
        assert (reply[b"reason"], reply[b"context"]) == (b"key", b"toplevel")
        assert (reply[b"object"], reply[b"username"]) == (b"a:1", b"u")
        assert b" flags=N " in reply[b"client-info"]
        assert b" cmd=xreadgroup " in reply[b"client-info"]
        assert b"acl_access_denied_key:1\r\n" in admin.ask("INFO stats")
        assert b"errorstat_NOPERM:count=1\r\n" in admin.ask("INFO errorstats")
        assert asker.ask("PING") == b"PONG"


def test_the_next_reader_gets_the_entry_that_the_first_may_not_read(
    served: Served, admin: Asker
) -> None:
    with _log_in(served, *ALL) as first, served.asker() as second:
        _wait(admin, first, GROUP)
        _wait(admin, second, "XREADGROUP GROUP g d BLOCK 0 STREAMS a:1 >", 2)
        admin.ask("ACL SETUSER u -@all")
        admin.ask(NEWS)
        assert first.read() == _no_command("xreadgroup")
        assert second.read() == [[b"a:1", [[b"1-1", [b"f", b"v"]]]]]


@pytest.mark.parametrize(
    "lines", [("ACL SETUSER u -@all", NEWS), (NEWS, "ACL SETUSER u -@all")], ids=" ".join
)
def test_rights_are_checked_at_the_end_of_a_transaction(
    served: Served, admin: Asker, lines: tuple[str, ...]
) -> None:
    with _log_in(served, *ALL) as asker:
        _wait(admin, asker, GROUP)
        for line in ("MULTI", *lines, "EXEC"):
            admin.ask(line)
        assert asker.read() == _no_command("xreadgroup")


def test_a_blocked_client_of_a_deleted_user_is_disconnected(served: Served, admin: Asker) -> None:
    with _log_in(served, *ALL) as asker:
        _wait(admin, asker, GROUP)
        assert admin.ask("ACL DELUSER u") == 1
        assert asker.is_closed()
        assert admin.ask(NEWS) == b"1-1"
        assert admin.ask("XPENDING a:1 g")[0] == 0


def test_loading_the_acl_file_may_revoke_rights_of_a_blocked_client(
    serve: Serve, tmp_path: Path
) -> None:
    path = tmp_path / "users.acl"
    default = b"user default on nopass ~* &* +@all\n"
    path.write_bytes(default + b"user u on >secret ~* +@all\n")
    served = serve(aclfile=path)
    with served.asker() as admin, served.asker() as asker:
        admin.ask("XGROUP CREATE a:1 g 0 MKSTREAM")
        assert asker.ask("AUTH u secret") == b"OK"
        _wait(admin, asker, GROUP)
        path.write_bytes(default + b"user u on >secret ~b:* +@all\n")
        assert admin.ask("ACL LOAD") == b"OK"
        admin.ask(NEWS)
        assert asker.read() == NO_KEY


def test_a_new_password_does_not_end_a_blocked_read(served: Served, admin: Asker) -> None:
    with served.asker() as asker:
        _wait(admin, asker, GROUP)
        assert admin.ask("CONFIG SET requirepass secret") == b"OK"
        assert admin.ask(NEWS) == b"1-1"
        assert asker.read() == [[b"a:1", [[b"1-1", [b"f", b"v"]]]]]


def test_requests_after_a_wait_run_with_the_rights_at_that_time(
    served: Served, admin: Asker
) -> None:
    with _log_in(served, *ALL) as asker:
        _wait(admin, asker, GROUP)
        asker.send("GET", "k")
        admin.ask("ACL SETUSER u -get")
        admin.ask(NEWS)
        assert asker.read() == [[b"a:1", [[b"1-1", [b"f", b"v"]]]]]
        assert asker.read() == _no_command("get")


def test_requests_held_by_a_pause_run_with_the_rights_at_that_time(
    served: Served, admin: Asker
) -> None:
    with _log_in(served, *ALL) as asker:
        admin.ask("CLIENT PAUSE 100000 WRITE")
        _wait(admin, asker, NEWS)
        admin.ask("ACL SETUSER u -@all")
        admin.ask("CLIENT UNPAUSE")
        assert asker.read() == _no_command("xadd")


@pytest.mark.parametrize(
    ("change", "replies"),
    [
        ("-xadd", [CHANGED + "no permission to execute the command or subcommand", None]),
        ("resetkeys", [CHANGED + "no permission to touch the specified keys"] * 2),
    ],
)
def test_exec_refuses_commands_whose_rights_were_revoked(
    served: Served, admin: Asker, change: str, replies: list[str | None]
) -> None:
    with _log_in(served, *ALL) as asker:
        for line in ("MULTI", NEWS, "GET k"):
            asker.ask(line)
        admin.ask(f"ACL SETUSER u {change}")
        assert asker.ask("EXEC") == replies
        assert admin.ask("XLEN a:1") == 0
        assert all(entry[5] == b"multi" for entry in admin.ask("ACL LOG"))
        assert b"errorstat_NOPERM:count=" in admin.ask("INFO errorstats")


def test_monitor_continues_until_its_user_is_deleted(served: Served, admin: Asker) -> None:
    with _log_in(served, *ALL) as asker:
        assert asker.ask("MONITOR") == b"OK"
        admin.ask("ACL SETUSER u -@all")  # Redis, too, checks the right only at the start
        admin.ask("PING")
        assert asker.read().endswith(b'"PING"')
        admin.ask("ACL DELUSER u")
        assert asker.is_closed()


# --- commands in steps, and such as are put off ---------------------------------------------------


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[Server]:
    """A server without sockets; commands on 32 entries or more are long."""
    sizes = {"long_rows": 32, "step_rows": 16, "steps_s": -1.0}
    with sound(tmp_path / "store", ManualClock(), **sizes) as started:
        yield started


def _filled(server: Server) -> tuple[Talker, Worker]:
    """Return an administrator, and a user of a group of many entries."""
    boss, worker = Other(server, 1), Worker(server, 2)
    for number in range(300):
        boss.ask("XADD", "s", f"{number + 1}-1", "f", "v")
    boss.ask("XGROUP", "CREATE", "s", "g", "0")
    boss.ask("ACL", "SETUSER", "u", "on", ">secret", *ALL)
    worker.ask("AUTH", "u", "secret")
    return boss, worker


@pytest.mark.parametrize(
    "words",
    [
        ("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">"),
        ("COPY", "s", "c"),
        ("MOVE", "s", "3"),
    ],
    ids=lambda words: words[0],
)
def test_an_incremental_command_ends_when_its_rights_are_revoked(
    quiet: Server, words: tuple[str, ...]
) -> None:
    boss, worker = _filled(quiet)
    worker.begin(*words)
    assert boss.ask("ACL", "SETUSER", "u", "-@all") == b"+OK\r\n"
    boss.ask("XADD", "s", "*", "f", "secret")
    refused = worker.end()
    assert (
        str(refused) == f"NOPERM User u has no permissions to run the '{words[0].lower()}' command"
    )
    assert boss.ask("XPENDING", "s", "g").startswith(b"*4\r\n:0\r\n")
    assert boss.ask("EXISTS", "s", "c") == b":1\r\n"
    assert worker.ask("PING").startswith(b"-NOPERM")


def test_a_postponed_read_is_refused_after_the_loss_of_rights(
    quiet: Server,
) -> None:
    boss, worker = _filled(quiet)
    boss.send("XADD", "other", "1-1", "f", "v")  # the long read waits for the next turn
    worker.send("XRANGE", "s", "-", "+")
    boss.send("ACL", "SETUSER", "u", "-@all")
    boss.send("XADD", "s", "*", "f", "secret")
    quiet.turn()
    assert worker.heard() == b"-NOPERM User u has no permissions to run the 'xrange' command\r\n"
