"""SUBSCRIBE, PUBLISH and related commands, as clients see them."""

import pytest

from tests.server.talking import Talker


def bulk(*words: bytes | int, sign: bytes = b"*") -> bytes:
    """Return an encoded array of strings and numbers, or with the sign ``>`` a push."""
    parts = [
        b":%d\r\n" % word if isinstance(word, int) else b"$%d\r\n%b\r\n" % (len(word), word)
        for word in words
    ]
    return b"%b%d\r\n" % (sign, len(words)) + b"".join(parts)


def test_each_channel_has_a_reply_and_counts_once(ann: Talker) -> None:
    assert ann.ask("SUBSCRIBE", "a", "b", "a") == (
        bulk(b"subscribe", b"a", 1) + bulk(b"subscribe", b"b", 2) + bulk(b"subscribe", b"a", 2)
    )
    assert ann.ask("PSUBSCRIBE", "p*") == bulk(b"psubscribe", b"p*", 3)
    assert ann.ask("SSUBSCRIBE", "a") == bulk(b"ssubscribe", b"a", 1)
    assert ann.ask("UNSUBSCRIBE", "nosuch", "b") == (
        bulk(b"unsubscribe", b"nosuch", 3) + bulk(b"unsubscribe", b"b", 2)
    )
    assert ann.ask("UNSUBSCRIBE") == bulk(b"unsubscribe", b"a", 1)
    assert ann.ask("UNSUBSCRIBE") == b"*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:1\r\n"
    assert ann.ask("PUNSUBSCRIBE") == bulk(b"punsubscribe", b"p*", 0)
    assert ann.ask("SUNSUBSCRIBE") == bulk(b"sunsubscribe", b"a", 0)


def test_a_message_reaches_each_subscription(ann: Talker, bob: Talker) -> None:
    ann.ask("SUBSCRIBE", "orders")
    ann.ask("PSUBSCRIBE", "o*", "x*", "*s")
    assert bob.ask("PUBLISH", "orders", "hi") == b":3\r\n"
    assert ann.heard() == (
        bulk(b"message", b"orders", b"hi")
        + bulk(b"pmessage", b"o*", b"orders", b"hi")
        + bulk(b"pmessage", b"*s", b"orders", b"hi")
    )
    assert bob.ask("SPUBLISH", "orders", "hi") == b":0\r\n"
    ann.ask("SSUBSCRIBE", "orders")
    assert bob.ask("SPUBLISH", "orders", "hi") == b":1\r\n"
    assert ann.heard() == bulk(b"smessage", b"orders", b"hi")


def test_messages_and_replies_keep_their_order(ann: Talker, bob: Talker) -> None:
    ann.ask("SUBSCRIBE", "c")
    bob.send("PUBLISH", "c", "1")
    bob.send("PUBLISH", "c", "2")
    ann.send("UNSUBSCRIBE", "c")
    assert bob.ask("PUBLISH", "c", "3") == b":1\r\n:1\r\n:1\r\n"
    assert ann.heard() == b"".join(
        [
            *(bulk(b"message", b"c", number) for number in (b"1", b"2", b"3")),
            bulk(b"unsubscribe", b"c", 0),
        ]
    )
    assert bob.ask("PUBLISH", "c", "4") == b":0\r\n"
    assert ann.heard() == b""


def test_in_resp2_a_subscriber_may_run_few_commands(ann: Talker) -> None:
    ann.ask("SUBSCRIBE", "c")
    assert ann.ask("PING") == bulk(b"pong", b"")
    assert ann.ask("PING", "hi") == bulk(b"pong", b"hi")
    for words in (
        ["GET", "k"],
        ["CLIENT", "LIST"],
        ["HELLO", "3"],
        ["MULTI"],
        ["PUBLISH", "c", "m"],
    ):
        name = "|".join(words[:2]).lower() if words[0] == "CLIENT" else words[0].lower()
        assert ann.ask(*words).decode() == (
            f"-ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / "
            "RESET are allowed in this context\r\n"
        )
    assert ann.ask("RESET") == b"+RESET\r\n"
    assert ann.ask("PING") == b"+PONG\r\n"


def test_in_resp3_messages_are_pushes_and_every_command_is_allowed(
    ann: Talker, bob: Talker
) -> None:
    ann.ask("HELLO", "3")
    assert ann.ask("SUBSCRIBE", "c") == bulk(b"subscribe", b"c", 1, sign=b">")
    assert ann.ask("PING") == b"+PONG\r\n"
    bob.ask("PUBLISH", "c", "m")
    assert ann.heard() == bulk(b"message", b"c", b"m", sign=b">")
    assert ann.ask("PUBLISH", "c", "own") == b":1\r\n" + bulk(b"message", b"c", b"own", sign=b">")
    ann.send("PUBLISH", "c", "1")
    assert ann.ask("GET", "k") == b":1\r\n" + bulk(b"message", b"c", b"1", sign=b">") + b"_\r\n"
    ann.send("HELLO", "2")
    ann.send("PING")
    bob.ask("PUBLISH", "c", "m")
    assert ann.heard().endswith(bulk(b"pong", b"") + bulk(b"message", b"c", b"m"))


def test_a_queued_publish_is_sent_with_its_transaction(ann: Talker, bob: Talker) -> None:
    ann.ask("SUBSCRIBE", "c")
    for words in (["MULTI"], ["PUBLISH", "c", "1"], ["SET", "k", "v"], ["PUBLISH", "c", "2"]):
        bob.ask(*words)
    assert ann.heard() == b""
    assert bob.ask("EXEC") == b"*3\r\n:1\r\n+OK\r\n:1\r\n"
    assert ann.heard() == bulk(b"message", b"c", b"1") + bulk(b"message", b"c", b"2")


def test_subscribing_in_a_transaction(ann: Talker, bob: Talker) -> None:
    for words in (["MULTI"], ["SUBSCRIBE", "a", "b"], ["SSUBSCRIBE", "a"], ["PING"]):
        ann.ask(*words)
    assert ann.ask("EXEC") == (
        b"*3\r\n"
        + bulk(b"subscribe", b"a", 1)
        + bulk(b"subscribe", b"b", 2)
        + b"-ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client\r\n"
        + bulk(b"pong", b"")
    )


def test_client_reply_does_not_suppress_pushes(ann: Talker, bob: Talker) -> None:
    ann.ask("HELLO", "3")
    assert ann.ask("CLIENT", "REPLY", "OFF") == b""
    assert ann.ask("SUBSCRIBE", "c") == bulk(b"subscribe", b"c", 1, sign=b">")
    assert ann.ask("PING") == b""
    bob.ask("PUBLISH", "c", "m")
    assert ann.heard() == bulk(b"message", b"c", b"m", sign=b">")
    assert ann.ask("UNSUBSCRIBE") == bulk(b"unsubscribe", b"c", 0, sign=b">")
    ann.ask("CLIENT", "REPLY", "ON")
    assert ann.ask("CLIENT", "REPLY", "SKIP") == b""
    assert ann.ask("SUBSCRIBE", "c") == bulk(b"subscribe", b"c", 1, sign=b">")
    assert ann.ask("PING") == b"+PONG\r\n"


def test_pubsub_shows_channels_patterns_and_numbers(ann: Talker, bob: Talker) -> None:
    ann.ask("SUBSCRIBE", "a1", "b1")
    ann.ask("PSUBSCRIBE", "a*", "b*")
    ann.ask("SSUBSCRIBE", "s1")
    assert bob.ask("PUBSUB", "CHANNELS") == bulk(b"a1", b"b1")
    assert bob.ask("PUBSUB", "CHANNELS", "a*") == bulk(b"a1")
    assert bob.ask("PUBSUB", "NUMSUB", "a1", "nosuch") == bulk(b"a1", 1, b"nosuch", 0)
    assert bob.ask("PUBSUB", "NUMSUB") == b"*0\r\n"
    assert bob.ask("PUBSUB", "SHARDNUMSUB", "s1", "a1") == bulk(b"s1", 1, b"a1", 0)
    assert bob.ask("PUBSUB", "SHARDCHANNELS") == bulk(b"s1")
    bob.ask("PSUBSCRIBE", "a*")
    bob.ask("PUNSUBSCRIBE")
    assert bob.ask("PUBSUB", "NUMPAT") == b":2\r\n"
    ann.leave()
    assert bob.ask("PUBSUB", "CHANNELS") + bob.ask("PUBSUB", "NUMPAT") == b"*0\r\n:0\r\n"


@pytest.mark.parametrize("words", [["RESET"], ["QUIT"]])
def test_a_closed_client_gets_no_more_messages(ann: Talker, bob: Talker, words: list[str]) -> None:
    ann.ask("SUBSCRIBE", "c")
    ann.ask("SSUBSCRIBE", "c")
    ann.ask(*words)
    if words == ["QUIT"]:
        ann.leave()
    assert bob.ask("PUBLISH", "c", "m") + bob.ask("SPUBLISH", "c", "m") == b":0\r\n:0\r\n"
    assert ann.heard() == b""


def test_client_list_shows_subscriptions(ann: Talker, bob: Talker) -> None:
    ann.ask("SUBSCRIBE", "a", "b")
    ann.ask("PSUBSCRIBE", "a*")
    ann.ask("SSUBSCRIBE", "a", "b", "c")
    line = bob.ask("CLIENT", "LIST").decode().splitlines()[1]
    assert " flags=P " in line
    assert " sub=2 psub=1 ssub=3 " in line
