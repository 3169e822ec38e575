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


def test_messages_of_a_turn_keep_their_places_among_its_replies(ann: Talker, bob: Talker) -> None:
    ann.ask("HELLO", "3")
    ann.ask("SUBSCRIBE", "c")
    ann.send("PUBLISH", "c", "1")
    assert ann.ask("GET", "k") == b":1\r\n" + bulk(b"message", b"c", b"1", sign=b">") + b"_\r\n"
    ann.send("HELLO", "2")
    ann.send("PING")
    bob.ask("PUBLISH", "c", "m")
    assert ann.heard().endswith(bulk(b"pong", b"") + bulk(b"message", b"c", b"m"))


@pytest.mark.parametrize("words", [["RESET"], ["QUIT"]])
def test_a_closed_client_has_no_subscriptions(ann: Talker, bob: Talker, words: list[str]) -> None:
    ann.ask("SUBSCRIBE", "c")
    ann.ask("SSUBSCRIBE", "c")
    ann.ask(*words)
    if words == ["QUIT"]:
        ann.leave()
    assert bob.ask("PUBLISH", "c", "m") + bob.ask("SPUBLISH", "c", "m") == b":0\r\n:0\r\n"
    assert bob.ask("PUBSUB", "CHANNELS") == b"*0\r\n"
    assert ann.heard() == b""


def test_client_list_shows_subscriptions(ann: Talker, bob: Talker) -> None:
    ann.ask("SUBSCRIBE", "a", "b")
    ann.ask("PSUBSCRIBE", "a*")
    ann.ask("SSUBSCRIBE", "a", "b", "c")
    line = bob.ask("CLIENT", "LIST").decode().splitlines()[1]
    assert " flags=P " in line
    assert " sub=2 psub=1 ssub=3 " in line
