"""Values that are hidden: fields with secret names, and from viewers all of them."""

import json
import re

import pytest

from kvstream import InvalidArgument, Store
from kvstream.console import app
from kvstream.console.access import Role, User
from kvstream.console.redaction import HIDDEN, Redaction
from tests.console.conftest import Open

SECRET = "4111111111111111"


@pytest.fixture
def secret(full: Store) -> Store:
    """A store that has a secret in several ways."""
    data = {"user": {"Card_No": SECRET, "name": "ann"}, "cards": [SECRET]}
    full.stream("plain").add({"card": SECRET, "to": "ann"})
    full.stream("plain").add({"CARD": SECRET})
    full.stream("nested").add({"body": json.dumps(data)})
    full.stream("nested").add({"body": json.dumps([[data]])})
    full.stream("binary").add({"body": b"\xff" + SECRET.encode()})
    full.stream("broken").add({"body": '\ufeff {"card": "' + SECRET})
    full.stream("broken").add({"body": json.dumps({"inner": json.dumps(json.dumps(data))})})
    full.stream("long").add({"body": json.dumps({"a": "x" * 40_000, "card": SECRET})})
    return full


@pytest.mark.parametrize("role", ["viewer", "admin"])
def test_secret_names_are_hidden_from_everybody(opened: Open, secret: Store, role: str) -> None:
    browser = opened(role, redact=["card*"])
    for name in ("plain", "nested", "binary", "broken", "long"):
        entries = browser.page(f"/streams/{name}/entries")
        assert HIDDEN in entries.text, name
        links = [each for each in entries.links if re.search(r"entries/\d+-\d+$", each)]
        for path in links:
            page = browser.page(path)
            assert HIDDEN in page.text, path
            assert SECRET not in page.text, path
            assert SECRET.encode().hex()[:16] not in page.text.replace(" ", ""), path
        assert SECRET not in entries.text
    assert "ann" in browser.page("/streams/plain/entries").text
    assert "ann" in browser.page("/streams/nested/entries").text


def test_viewers_may_see_no_values(opened: Open) -> None:
    viewer, operator = opened("viewer", hide_values=True), opened("operator", hide_values=True)
    for path in ("/streams/orders/entries", "/queues/emails", "/dead/emails:dead", "/schedules"):
        assert HIDDEN in viewer.page(path).text, path
        assert HIDDEN not in operator.page(path).text, path
    assert not re.search(r"user\d|\ba\d+\b", viewer.page("/streams/orders/entries").text)
    assert not re.search(r"user\d", viewer.page("/dead/emails:dead").text)


def test_arguments_are_plain_data() -> None:
    redaction = Redaction(["pass*", "token"], hides_values=True)
    plain = redaction.plain({"Password": 1, "a": [{"token": "x"}, ("y",)], "tokens": 2})
    assert plain == {"Password": HIDDEN, "a": [{"token": HIDDEN}, ["y"]], "tokens": 2}
    assert redaction.hides_all(User("ann"))
    assert not redaction.hides_all(User("ann", Role.OPERATOR))


def test_patterns_are_a_list(store: Store) -> None:
    with pytest.raises(InvalidArgument, match="redact is a list"):
        app(store, auth=lambda _: None, redact="password")
