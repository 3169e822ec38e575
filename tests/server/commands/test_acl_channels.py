"""Channels in ACL rules: which users may publish and subscribe, and who is disconnected."""

from pathlib import Path

import pytest

from tests.server.conftest import Serve
from tests.server.talking import Server, Talker

NO_CHANNEL = b"-NOPERM No permissions to access a channel\r\n"


def as_user(server: Server, *rules: str) -> Talker:
    """Return a client of a user with all keys and commands, and these rules."""
    admin, talker = server.client(), server.client()
    assert admin.ask("ACL", "SETUSER", "ann", "on", ">pw", "~*", "+@all", *rules) == b"+OK\r\n"
    assert talker.ask("AUTH", "ann", "pw") == b"+OK\r\n"
    return talker


def test_a_new_user_has_no_channel_but_may_do_the_rest(server: Server) -> None:
    ann = as_user(server)
    for words in (["PUBLISH", "c", "m"], ["SPUBLISH", "c", "m"], ["SUBSCRIBE", "c"]):
        assert ann.ask(*words) == NO_CHANNEL
    assert ann.ask("PSUBSCRIBE", "*") == ann.ask("SSUBSCRIBE", "c") == NO_CHANNEL
    assert ann.ask("SET", "k", "v") == b"+OK\r\n"
    assert ann.ask("UNSUBSCRIBE", "c").endswith(b":0\r\n")
    assert ann.ask("SUNSUBSCRIBE", "c").endswith(b":0\r\n")
    assert ann.ask("PUBSUB", "CHANNELS") == b"*0\r\n"


def test_a_channel_is_matched_and_a_pattern_is_compared(server: Server) -> None:
    ann = as_user(server, "&foo:1", "&bar:*")
    assert ann.ask("PUBLISH", "foo:1", "m") == ann.ask("PUBLISH", "bar:2", "m") == b":0\r\n"
    assert ann.ask("PUBLISH", "zap:3", "m") == NO_CHANNEL
    assert ann.ask("SUBSCRIBE", "foo:1", "zap") == NO_CHANNEL
    assert ann.ask("PSUBSCRIBE", "bar:1*") == ann.ask("PSUBSCRIBE", "bar:*", "f*") == NO_CHANNEL
    assert ann.ask("PSUBSCRIBE", "bar:*", "foo:1").endswith(b":2\r\n")
    assert ann.ask("SUBSCRIBE", "foo:1", "bar:x").endswith(b":4\r\n")


def test_one_selector_must_allow_the_command_and_all_channels(server: Server) -> None:
    ann = as_user(server, "-publish", "&own", "(+publish &a &b)")
    assert ann.ask("PUBLISH", "a", "m") == b":0\r\n"
    assert ann.ask("PUBLISH", "own", "m") == NO_CHANNEL
    assert ann.ask("SUBSCRIBE", "a") == NO_CHANNEL
    ann = as_user(server, "reset", "on", ">pw", "+@all", "&own", "(+subscribe &a &b)")
    assert ann.ask("SUBSCRIBE", "own", "a") == NO_CHANNEL
    assert ann.ask("SUBSCRIBE", "a", "b").endswith(b":2\r\n")


def test_a_transaction_with_a_forbidden_channel_fails(server: Server) -> None:
    ann, admin = as_user(server, "&mine"), server.client()
    ann.ask("MULTI")
    assert ann.ask("PUBLISH", "other", "m") == NO_CHANNEL
    assert ann.ask("EXEC").startswith(b"-EXECABORT")
    for words in (["MULTI"], ["PUBLISH", "mine", "m"]):
        ann.ask(*words)
    admin.ask("ACL", "SETUSER", "ann", "resetchannels")
    assert ann.ask("EXEC") == (
        b"*1\r\n-NOPERM ACLs rules changed between the moment the transaction was accumulated and "
        b"the EXEC call. This command is no longer allowed for the following reason: no permission "
        b"to access one of the channels used as arguments\r\n"
    )


def test_a_script_publishes_to_no_forbidden_channel(server: Server) -> None:
    ann = as_user(server, "&mine")
    script = "return redis.call(ARGV[1], ARGV[2], 'm')"
    for word in ("PUBLISH", "SPUBLISH"):
        assert ann.ask("EVAL", script, "0", word, "mine") == b":0\r\n"
        refused = ann.ask("EVAL", script, "0", word, "other")
        assert b"No permissions to access a channel" in refused


def test_refusals_are_logged_counted_and_predicted_by_dryrun(server: Server) -> None:
    ann, admin = as_user(server, "&mine"), server.client()
    ann.ask("PUBLISH", "other", "m")
    log = admin.ask("ACL", "LOG")
    for part in (b"reason\r\n$7\r\nchannel", b"object\r\n$5\r\nother", b"username\r\n$3\r\nann"):
        assert part in log
    assert b"acl_access_denied_channel:1\r\n" in admin.ask("INFO", "stats")
    reply = admin.ask("ACL", "DRYRUN", "ann", "SPUBLISH", "other", "m")
    assert reply.endswith(b"User ann has no permissions to access the 'other' channel\r\n")
    for words in (["PUBLISH", "mine", "m"], ["SUNSUBSCRIBE", "other"], ["PSUBSCRIBE", "mine"]):
        assert admin.ask("ACL", "DRYRUN", "ann", *words) == b"+OK\r\n"


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["SUBSCRIBE", "foo:1"], False),
        (["SSUBSCRIBE", "foo:1"], False),
        (["PSUBSCRIBE", "bar:*"], False),
        (["SUBSCRIBE", "orders"], True),
        (["PING"], True),
    ],
)
def test_a_subscriber_that_loses_its_channel_is_disconnected(
    server: Server, words: list[str], kept: bool
) -> None:
    ann, admin = as_user(server, "&foo:1", "&bar:*", "&orders"), server.client()
    ann.ask(*words)
    admin.ask("ACL", "SETUSER", "ann", "resetchannels", "&foo:1", "&bar:*", "&orders", "&more")
    admin.ask("ACL", "SETUSER", "ann", "allchannels")
    assert not ann.closed
    admin.ask("ACL", "SETUSER", "ann", "resetchannels", "&orders")
    assert ann.closed is not kept


def test_a_subscriber_that_revokes_its_own_channel_gets_a_reply(server: Server) -> None:
    ann = as_user(server, "&c")
    ann.ask("HELLO", "3")
    ann.ask("SUBSCRIBE", "c")
    assert ann.ask("ACL", "SETUSER", "ann", "resetchannels") == b"+OK\r\n"
    assert ann.closed


def test_a_client_that_changed_its_user_keeps_its_subscriptions(server: Server) -> None:
    ann, admin = as_user(server, "&c"), server.client()
    ann.ask("HELLO", "3")
    ann.ask("SUBSCRIBE", "c")
    admin.ask("ACL", "SETUSER", "bob", "on", "nopass", "+@all")
    ann.ask("AUTH", "bob", "x")
    admin.ask("ACL", "SETUSER", "bob", "~*")  # removes no rights
    admin.ask("ACL", "SETUSER", "ann", "resetchannels")
    assert not ann.closed


def test_new_selectors_have_the_channels_of_the_setting(server: Server) -> None:
    admin = server.client()
    admin.ask("CONFIG", "SET", "acl-pubsub-default", "allchannels")
    assert admin.ask("CONFIG", "GET", "acl-pubsub-default").endswith(b"allchannels\r\n")
    admin.ask("ACL", "SETUSER", "bob", "reset", "on", "nopass", "+@all", "(+get)")
    shown = admin.ask("ACL", "LIST")
    assert b"user bob on nopass sanitize-payload &* +@all (&* -@all +get)\r\n" in shown
    refused = admin.ask("ACL", "SETUSER", "eve", "&test")
    assert refused.endswith(b"Try 'resetchannels' to start with an empty list of channels\r\n")
    admin.ask("CONFIG", "SET", "acl-pubsub-default", "resetchannels")
    admin.ask("ACL", "SETUSER", "bob", "reset", "on", "nopass", "+@all")
    assert b"user bob on nopass sanitize-payload resetchannels +@all\r\n" in admin.ask(
        "ACL", "LIST"
    )


def test_loading_a_file_grants_and_revokes_channels(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "users.acl"
    path.write_text(
        "user default on nopass ~* &* +@all\nuser ann on nopass ~* resetchannels &test +@all\n"
    )
    served = serve(aclfile=path)
    with served.asker() as admin, served.asker() as ann:
        ann.ask("AUTH", "ann", "x")
        assert ann.ask("SUBSCRIBE test") == [b"subscribe", b"test", 1]
        assert admin.ask("PUBLISH test m") == 1
        assert ann.read() == [b"message", b"test", b"m"]
        admin.ask("ACL SAVE")
        admin.ask("ACL LOAD")
        assert admin.ask("PUBLISH test m") == 1
        assert ann.read() == [b"message", b"test", b"m"]
        text = path.read_text()
        assert "resetchannels &test" in text
        path.write_text(text.replace("&test", "&other"))
        admin.ask("ACL LOAD")
        assert ann.is_closed()
