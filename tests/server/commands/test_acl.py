"""Users: passwords, commands, categories and keys; nothing runs before AUTH."""

import hashlib
import re
import time
from pathlib import Path

import pytest

from kvstream.commands.absent import is_absent
from kvstream.commands.command import Flag, every
from kvstream.errors import InvalidArgument
from kvstream.server.acl import Acl
from kvstream.server.command_docs import categories_of
from kvstream.server.commands import TABLE
from tests.server.asking import Asker, Failure
from tests.server.conftest import Serve, Served
from tests.server.talking import Talker

SINCE_7_2 = b"sanitize-payload"
"""A flag that older servers do not show."""
SECRET = hashlib.sha256(b"secret").hexdigest()
COMMANDS = every(TABLE)


def _log_in(served: Served, *rules: str) -> Asker:
    """Return a connection of a user with these rules."""
    with served.asker() as admin:
        assert admin.ask("ACL", "SETUSER", "ann", "reset", "on", ">secret", *rules) == b"OK"
    asker = served.asker()
    assert asker.ask("AUTH ann secret") == b"OK"
    return asker


def _words(name: str, arity: int) -> list[str]:
    words = name.split("|")
    return words + ["x"] * (abs(arity) - len(words))


def _refused(name: str, reason: str) -> Failure:
    """Return the reply of Redis to a refused command: EXEC also ends its transaction."""
    opening = "EXECABORT Transaction discarded because of: " if name == "exec" else ""
    return Failure(opening + reason)


def test_before_auth_only_commands_without_auth_run(serve: Serve) -> None:
    served = serve(requirepass="secret")
    with served.asker() as asker:
        for command in COMMANDS:
            if Flag.NO_AUTH in command.flags:
                continue
            answer = asker.ask(*_words(command.name, command.arity))
            assert answer == _refused(command.name, "NOAUTH Authentication required.")
        assert asker.ask("HELLO 3").startswith("NOAUTH HELLO must be called")
        assert asker.ask("AUTH wrong").startswith("WRONGPASS")
        assert asker.ask("AUTH secret") == b"OK"
        assert asker.ask("PING") == b"PONG"
        asker.ask("RESET")
        assert asker.ask("PING") == Failure("NOAUTH Authentication required.")


def test_a_user_without_rights_may_run_only_the_commands_open_to_all(
    served: Served,
) -> None:
    with _log_in(served) as asker:
        for command in COMMANDS:
            if Flag.NO_AUTH in command.flags:
                continue
            answer = asker.ask(*_words(command.name, command.arity))
            reason = f"NOPERM User ann has no permissions to run the '{command.name}' command"
            assert answer == _refused(command.name, reason)


@pytest.mark.parametrize("category", ["read", "write", "stream", "admin", "connection", "fast"])
def test_a_category_allows_its_commands_and_no_others(served: Served, category: str) -> None:
    with served.asker() as admin:
        admin.ask("ACL", "SETUSER", "ann", "reset", "allkeys", "allchannels", f"+@{category}")
        for command in COMMANDS:
            answer = admin.ask("ACL", "DRYRUN", "ann", *_words(command.name, command.arity))
            free = Flag.NO_AUTH in command.flags
            assert (answer == b"OK") == (free or category in categories_of(command)), command.name


def test_a_refused_command_inside_multi_makes_exec_fail(served: Served) -> None:
    with _log_in(served, "~a*", "+@all", "-get") as asker:
        asker.ask("MULTI")
        assert asker.ask("SET a 1") == b"QUEUED"
        assert asker.ask("GET a").startswith("NOPERM")
        assert asker.ask("EXEC").startswith("EXECABORT")
        assert asker.ask("EXISTS a") == 0


def test_revoked_rights_are_lost_at_once(served: Served) -> None:
    with _log_in(served, "~*", "+@all") as asker, served.asker() as admin:
        assert asker.ask("GET k") is None
        admin.ask("ACL SETUSER ann -get")
        assert asker.ask("GET k").startswith("NOPERM")
        assert admin.ask("ACL DELUSER ann") == 1
        assert asker.is_closed()


def test_the_rights_of_a_transaction_are_checked_again_when_it_runs(served: Served) -> None:
    with _log_in(served, "~*", "+@all") as asker, served.asker() as admin:
        asker.ask("MULTI")
        asker.ask("SET k v")
        admin.ask("ACL SETUSER ann -set")
        (answer,) = asker.ask("EXEC")
        assert answer.startswith("NOPERM")
        denied = admin.ask("ACL LOG")[0]
        assert denied[5] == b"multi"
        assert b" cmd=exec " in denied[13]
        assert admin.ask("EXISTS k") == 0


def test_a_refused_exec_is_in_a_transaction_only_after_multi(served: Served) -> None:
    with _log_in(served, "-@all", "+multi") as asker, served.asker() as admin:
        asker.ask("EXEC")
        assert admin.ask("ACL LOG")[0][5] == b"toplevel"
        asker.ask("MULTI")
        asker.ask("EXEC")
        assert admin.ask("ACL LOG")[0][5] == b"multi"


def test_a_refusal_repeats_one_of_the_ten_newest_entries(served: Served, redis82_port: int) -> None:
    found = []
    for port in (served.port, redis82_port):
        with Asker(port) as admin, Asker(port) as asker:
            admin.ask("ACL LOG RESET")
            admin.ask("ACL SETUSER ann on >secret ~mine:* +get")
            asker.ask("AUTH ann secret")
            for key in ("a", "a", *range(9), "a", *range(20, 30), "a"):
                asker.ask("GET", str(key))
            entries = admin.ask("ACL LOG 100")
            found.append([(entry[7], entry[1]) for entry in entries])
            admin.ask("ACL DELUSER ann")
    assert found[0] == found[1]
    assert found[0][0] == (b"a", 1)


def test_the_age_of_an_entry_of_the_log_counts_from_its_last_repetition(served: Served) -> None:
    with served.asker() as admin, served.asker() as asker:
        admin.ask("ACL SETUSER ann on >secret ~mine:* +get")
        asker.ask("AUTH ann secret")
        asker.ask("GET other")
        time.sleep(0.3)
        asker.ask("GET other")
        entry = admin.ask("ACL LOG")[0]
        assert entry[1] == 2
        assert float(entry[11]) < 0.25


def test_passwords_are_added_removed_and_never_kept(served: Served, redis_port: int) -> None:
    for asker in (served.asker(), Asker(redis_port)):
        with asker:
            asker.ask("ACL SETUSER bob on >secret >other ~k* +get")
            assert re.match(b"user bob on (sanitize-payload )?#", asker.ask("ACL LIST")[0])
            assert SECRET.encode() in asker.ask("ACL LIST")[0]
            assert asker.ask("AUTH bob other") == b"OK"
            assert asker.ask("AUTH default x") == b"OK"
            assert asker.ask("ACL SETUSER bob <other") == b"OK"
            assert asker.ask("AUTH bob other").startswith("WRONGPASS")
            assert asker.ask("ACL", "SETUSER", "bob", "!" + SECRET) == b"OK"
            assert asker.ask("AUTH bob secret").startswith("WRONGPASS")
            asker.ask("ACL", "SETUSER", "bob", "#" + SECRET, "off")
            assert asker.ask("AUTH bob secret").startswith("WRONGPASS")
            asker.ask("ACL", "SETUSER", "bob", "on", "", "nopass")
            assert asker.ask("AUTH bob whatever") == b"OK"
            asker.ask("AUTH default x")
            flags, *shown = asker.ask("ACL GETUSER bob")[1:]
            assert [flag for flag in flags if flag != SINCE_7_2] == [b"on", b"nopass"]
            assert shown == [
                *(b"passwords", [], b"commands", b"-@all +get"),
                *(b"keys", b"~k*", b"channels", b"", b"selectors", []),
            ]
            assert asker.ask("ACL DELUSER bob") == 1


def test_redis_py_creates_and_shows_users(served: Served, protocol: int) -> None:
    client = served.client(protocol, decode_responses=True)
    client.acl_setuser(
        "ann",
        enabled=True,
        passwords=["+secret"],
        keys=["orders:*"],
        commands=["+xadd", "+get"],
        categories=["+@read"],
    )
    reply = client.acl_getuser("ann")
    assert reply is not None
    assert reply["passwords"] == [SECRET]
    assert (reply["commands"], reply["categories"]) == (["+xadd", "+get"], ["-@all", "+@read"])
    assert client.acl_whoami() == "default"
    assert "stream" in client.acl_cat()
    assert "xadd" in client.acl_cat("stream")
    assert len(client.acl_genpass()) == 64
    assert client.acl_list() == [
        "user ann on sanitize-payload #"
        + SECRET
        + " ~orders:* resetchannels -@all +@read +xadd +get",
        "user default on nopass sanitize-payload ~* &* +@all",
    ]


def test_a_changed_password_applies_to_new_clients(served: Served) -> None:
    with served.asker() as old:
        old.ask("CONFIG SET requirepass secret")
        assert old.ask("PING") == b"PONG"
        with served.asker() as new:
            assert new.ask("PING").startswith("NOAUTH")
            assert new.ask("HELLO 3 AUTH default secret")[b"proto"] == 3
        assert old.ask("CONFIG", "SET", "requirepass", "") == b"OK"
        with served.asker() as new:
            assert new.ask("PING") == b"PONG"


def test_users_are_kept_in_a_file(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "users.acl"
    path.touch()
    with serve(aclfile=path).asker() as asker:
        asker.ask("ACL SETUSER ann on >secret ~k* +get")
        assert asker.ask("ACL SAVE") == b"OK"
        asker.ask("ACL SETUSER bob")
    assert path.stat().st_mode & 0o777 == 0o600
    with serve(aclfile=path).asker() as asker:
        assert asker.ask("ACL USERS") == [b"ann", b"default"]
        assert asker.ask("AUTH ann secret") == b"OK"
        assert asker.ask("GET k1") is None
        asker.ask("AUTH default x")
        path.write_bytes(b"user default on nopass ~* &* +@all\nuser carl on nosuch\n")
        assert "carl" not in str(asker.ask("ACL USERS"))
        assert isinstance(asker.ask("ACL LOAD"), Failure)
        assert asker.ask("ACL USERS") == [b"ann", b"default"]
        path.write_bytes(b"user carl on nopass ~* +@all\n")
        assert asker.ask("ACL LOAD") == b"OK"
        assert asker.ask("ACL USERS") == [b"carl", b"default"]


def test_a_file_of_users_that_cannot_be_read_or_written_changes_nothing(
    serve: Serve, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "users.acl"
    path.write_text("user default on nopass ~* &* +@all\nuser ann on >secret +get\n")
    unchanged = "WARNING: ACL errors detected, no change to the previously active ACL rules"
    with serve(aclfile=path).asker() as asker:
        path.unlink()
        missing = asker.ask("ACL LOAD")
        path.mkdir()
        replies = [missing, asker.ask("ACL LOAD")]
        path.rmdir()
        folder.rmdir()
        replies.append(asker.ask("ACL LOAD"))
        reasons = ("No such file or directory", "Is a directory", "No such file or directory")
        for reply, reason in zip(replies, reasons, strict=True):
            assert reply.startswith(f"ERR Error loading ACLs, opening file '{path}': {reason}")
            assert unchanged in reply
        failed = f"ERR There was an error trying to save the ACLs, writing file '{path}': "
        assert asker.ask("ACL SAVE") == f"{failed}No such file or directory"
        path.mkdir(parents=True)
        assert asker.ask("ACL SAVE") == f"{failed}Is a directory"
        assert [*folder.iterdir()] == [path]  # no part of it stays
        assert asker.ask("ACL USERS") == [b"ann", b"default"]
        assert asker.ask("SET k v") == b"OK"


def test_every_wrong_line_of_a_file_of_users_is_named_without_its_passwords(
    serve: Serve, tmp_path: Path
) -> None:
    path = tmp_path / "users.acl"
    path.touch()
    with serve(aclfile=path).asker() as asker:
        path.write_text("user ann on <hidden\n\nusr bob\nuser carl +nosuch\nuser dora on\n")
        reply = asker.ask("ACL LOAD")
        assert f"{path}:1: The password you are trying to remove" in reply
        assert f"{path}:3: should start with user keyword followed by the username" in reply
        assert f"{path}:4: Unknown command or category name in ACL" in reply
        assert "hidden" not in reply
        assert asker.ask("ACL USERS") == [b"default"]
        path.write_text("nonsense\n" * 1000)
        assert "995 more lines are wrong" in asker.ask("ACL LOAD")


@pytest.mark.parametrize("content", [None, "user ann on nosuch\n", b"\xff\x00"])
def test_a_server_does_not_start_without_the_users_of_its_file(
    tmp_path: Path, content: str | bytes | None
) -> None:
    path = tmp_path / "users.acl"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InvalidArgument, match=re.escape(str(path))):
        Acl(TABLE, file=path)


def test_passwords_are_not_shown_to_monitors_or_in_the_slow_log(served: Served) -> None:
    with served.asker() as asker, served.asker() as monitor:
        asker.ask("CONFIG SET slowlog-log-slower-than 0")
        monitor.ask("MONITOR")
        asker.ask("AUTH default hidden")
        asker.ask("HELLO 2 AUTH default hidden")
        asker.ask("HELLO 2 SETNAME me")
        for name in ("masterauth", "tls-key-file-pass", "tls-client-key-file-pass"):
            asker.ask(f"CONFIG SET {name} hidden")
        asker.ask("ACL DRYRUN default AUTH hidden")
        asker.ask("PING")
        seen = b""
        while b'"PING"' not in seen:
            seen += monitor.read()
        assert b"hidden" not in seen
        assert b'"AUTH" "(redacted)" "(redacted)"' in seen
        found = [entry[3] for entry in asker.ask("SLOWLOG GET -1")]
        assert "hidden" not in str(found)
        assert [b"ACL", b"DRYRUN", *[b"(redacted)"] * 3] in found
        assert [b"HELLO", b"2", b"AUTH", b"(redacted)", b"(redacted)"] in found
        assert [b"HELLO", b"2", b"SETNAME", b"me"] in found
        assert [b"CONFIG", b"SET", b"masterauth", b"(redacted)"] in found


@pytest.mark.parametrize(
    "request_",
    [
        *("auth hidden", "AUTH ann hidden", "hello 2 auth ann hidden", "HELLO 2 AUTH hidden"),
        *("CONFIG SET requirepass hidden", "config set REQUIREPASS hidden"),
        *("CONFIG SET timeout 0 requirepass hidden", "CONFIG SET requirepass hidden timeout x"),
        *("CONFIG SET requirepas hidden", "CONFIG SET primaryauth hidden"),
        *("ACL SETUSER ann >hidden", "acl setuser ann <hidden", "ACL SETUSER ann #hidden"),
        "ACL DELUSER hidden",
    ],
)
def test_no_record_of_requests_has_a_password(served: Served, request_: str) -> None:
    """In any case and place, also where the request is wrong, or a setting misspelt."""
    with served.asker() as asker, served.asker() as admin, served.asker() as monitor:
        admin.ask("CONFIG SET slowlog-log-slower-than 0 latency-tracking yes")
        monitor.ask("MONITOR")
        asker.ask(request_)
        asker.ask("MULTI")
        asker.ask(request_)
        asker.ask("EXEC")
        admin.ask("ECHO end")
        seen = b""
        while b'"end"' not in seen:
            seen += monitor.read()
        records = [admin.ask(each) for each in ("SLOWLOG GET -1", "ACL LOG 100", "CLIENT LIST")]
        records += [admin.ask("INFO everything"), admin.ask("CLIENT INFO"), seen]
        assert b"hidden" not in repr(records).encode()


def test_rules_of_unsupported_commands_are_kept(served: Served) -> None:
    rules = b"-@all +get +zadd -hset|nosuch +cluster|info +memory|stats +eval -get +set"
    with served.asker() as asker:
        assert asker.ask(b"ACL", b"SETUSER", b"u", b"on", b"nopass", *rules.split()) == b"OK"
        (reply,) = [line for line in asker.ask("ACL LIST") if line.startswith(b"user u ")]
        assert reply.endswith(b"+zadd -hset|nosuch +cluster|info +memory|stats +eval -get +set")
        refused = b"User u has no permissions to access the 'k' key"
        assert asker.ask("ACL DRYRUN u SET k v") == refused
        assert b"no permissions to run" in asker.ask("ACL DRYRUN u GET k")
        assert "Unknown command or category" in asker.ask("ACL SETUSER u +nosuch")
        assert "Unknown command or category" in asker.ask("ACL SETUSER u +client|nosuch")


def test_no_command_is_both_supported_and_unsupported() -> None:
    here = {command.name for command in every(TABLE)} | {name.decode() for name in TABLE}
    assert not [name for name in here if is_absent(name)]


def test_a_request_must_be_allowed_by_one_set_of_rules(served: Served) -> None:
    with _log_in(served, "(+@write ~w:*)", "(+@read", "%R~r:*)", "+mget") as asker:
        assert asker.ask("PING").startswith("NOPERM User ann has no permissions to run")
        assert asker.ask("SET w:k v") == b"OK"
        assert asker.ask("GET r:k") is None
        assert asker.ask("GET w:k") == Failure("NOPERM No permissions to access a key")
        assert asker.ask("MGET r:a other r:b").startswith("NOPERM No permissions")
    with served.asker() as admin:
        assert admin.ask("ACL LOG")[0][7] == b"other"  # the selector that matched most
        reply = dict(zip(*[iter(admin.ask("ACL GETUSER ann"))] * 2, strict=True))
        assert reply[b"selectors"] == [
            [b"commands", b"-@all +@write", b"keys", b"~w:*", b"channels", b""],
            [b"commands", b"-@all +@read", b"keys", b"%R~r:*", b"channels", b""],
        ]
        line = admin.ask("ACL LIST")[0]
        selectors = b"(~w:* resetchannels -@all +@write) (%R~r:* resetchannels -@all +@read)"
        assert line.endswith(b" resetchannels -@all +mget " + selectors)
        assert admin.ask("ACL", "SETUSER", "bob", "reset", *line.decode().split()[2:]) == b"OK"
        assert admin.ask("ACL LIST")[1] == line.replace(b"user ann", b"user bob")
        admin.ask("ACL SETUSER ann clearselectors")
        assert b"(" not in admin.ask("ACL LIST")[0]


def test_a_command_may_be_allowed_with_one_first_word(served: Served) -> None:
    with _log_in(served, "-@all", "+select|0", "+SELECT|2") as asker, served.asker() as admin:
        assert asker.ask("SELECT 2") == b"OK"
        assert asker.ask("SELECT 1").startswith("NOPERM")
        admin.ask("ACL SETUSER ann -select")
        assert asker.ask("SELECT 2").startswith("NOPERM")


def test_a_pattern_of_all_keys_may_have_others_beside_it(served: Served) -> None:
    with served.asker() as asker:
        asker.ask("ACL SETUSER ann %R~* ~a %W~*")
        assert asker.ask("ACL GETUSER ann")[7] == b"%RW~* ~a"
        assert asker.ask("ACL SETUSER ann %RW~* ~b +get") == b"OK"
        assert asker.ask("ACL DRYRUN ann GET c") == b"OK"
        asker.ask("ACL SETUSER ann ~*")
        assert asker.ask("ACL GETUSER ann")[7] == b"~*"
        assert "Adding a pattern after the * pattern" in asker.ask("ACL SETUSER ann ~c")
        asker.ask("ACL SETUSER ann resetkeys")
        assert asker.ask("ACL GETUSER ann")[7] == b""


def test_a_user_may_occur_once_in_a_file(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "users.acl"
    path.write_bytes(b"user ann on nopass (~a +get) -@all\n")
    with serve(aclfile=path).asker() as asker:
        assert asker.ask("ACL DRYRUN ann GET a") == b"OK"
        path.write_bytes(b"user ann on\nuser ann off\n")
        assert "Duplicate user 'ann' found" in asker.ask("ACL LOAD")
        assert asker.ask("ACL DRYRUN ann GET a") == b"OK"


def test_a_shorter_log_of_refusals_applies_from_the_next_entry(served: Served) -> None:
    with _log_in(served) as asker, served.asker() as admin:
        asker.ask("GET a")
        admin.ask("CONFIG SET acllog-max-len 0")
        assert b" cmd=get " in admin.ask("ACL LOG")[0][13]
        asker.ask("GET a")
        assert admin.ask("ACL LOG") == []


def test_the_last_of_several_logins_of_hello_counts(served: Served) -> None:
    with _log_in(served, "+hello", "+acl|whoami") as asker:
        wrong, right = "AUTH ann wrong", "AUTH ann secret"
        assert asker.ask(f"HELLO 2 {wrong} {right}")[:2] == [b"server", b"redis"]
        assert asker.ask(f"HELLO 2 {right} {wrong}").startswith("WRONGPASS")
        assert asker.ask("ACL WHOAMI") == b"ann"


def test_flags_of_a_user_are_a_set_in_resp3(ann: Talker) -> None:
    ann.ask("HELLO", "3")
    assert b"$5\r\nflags\r\n~3\r\n$2\r\non\r\n$6\r\nnopass\r\n" in ann.ask(
        "ACL", "GETUSER", "default"
    )


def test_a_group_named_streams_hides_no_key(served: Served) -> None:
    with served.asker() as admin, served.asker() as asker:
        admin.ask("XGROUP CREATE secret STREAMS 0 MKSTREAM")
        admin.ask("XGROUP CREATE mine STREAMS 0 MKSTREAM")
        admin.ask("ACL SETUSER ann on >secret ~mine ~c ~streams ~STREAMS +@all")
        asker.ask("AUTH ann secret")
        for names in ("STREAMS c", "g STREAMS", "g streams"):
            reply = asker.ask(f"XREADGROUP GROUP {names} STREAMS secret >")
            assert reply == Failure("NOPERM No permissions to access a key"), names
        assert asker.ask("XREADGROUP GROUP STREAMS STREAMS STREAMS mine >") is None
