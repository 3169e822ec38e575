"""Actions: who may run them, what they change, and what the audit says."""

import json
from typing import Any

import pytest

import kvstream
from kvstream import Queue, Store
from kvstream.console import Role, User, app
from kvstream.console.actions import plan
from kvstream.console.actions.plan import AUDIT
from kvstream.console.actions.table import ACTIONS
from kvstream.operations import strings
from kvstream.operations.delivery.dead import BLOCK
from kvstream.stream import Stream
from tests.console.browser import Browser
from tests.console.conftest import Open
from tests.server.conftest import Served, serve, served

__all__ = ["serve", "served"]


def do(browser: Browser, path: str, code: int = 303, **given: str) -> Any:
    """Read the plan of an action, and run it by its form."""
    page = browser.page(path)
    (form,) = [each for each in page.forms if each["@"] == "post"]
    asked = {name: value for name, value in form.items() if name not in ("", "@")}
    reply = browser.ask("POST", form[""], data={**asked, **given})
    assert reply.status_code == code, reply.text[:2000]
    return page if code == 303 else reply


def audit_of(store: Store) -> list[tuple[str, str, str, int]]:
    """Return who did what to which target, and to how many."""
    found = []
    for each in store.stream(AUDIT).range():
        who, what, target = (each.fields[name].decode() for name in (b"who", b"what", b"target"))
        found.append((who, what, target, int(each.fields[b"count"])))
    return found


@pytest.fixture
def browser(opened: Open) -> Browser:
    return opened()


def test_roles_are_checked_for_every_action(opened: Open, full: Store) -> None:
    viewer, operator, closed = opened("viewer"), opened("operator"), opened(read_only=True)
    before = {each.key: each.length for each in full.key_infos()}
    for name, (role, _) in ACTIONS.items():
        path = f"/do/{name}?stream=orders&group=billing&queue=emails&schedule=nightly&id=1-1"
        viewer.get(path, 403)
        token = viewer.page("/") and "x"
        assert viewer.ask("POST", path, data={"csrf": token}).status_code == 403
        assert closed.ask("POST", path, data={"csrf": token}).status_code == 403
        if role is Role.ADMIN:
            operator.get(path, 403)
            assert operator.ask("POST", path, data={"csrf": token}).status_code == 403
    assert {each.key: each.length for each in full.key_infos()} == before
    assert not full.exists(AUDIT)


def test_buttons_are_for_those_who_may(opened: Open, full: Store) -> None:
    paths = ["/dead/emails:dead", "/queues/emails", "/streams/orders/groups/billing"]
    paths += ["/streams/orders", "/schedules"]
    for path in paths:
        for who in (opened("viewer"), opened(read_only=True)):
            page = who.page(path)
            assert not [each for each in page.links if "/do/" in each], path
            shown = [name for form in page.forms for name in form if name in ("id", "maxlen")]
            assert shown == [], path
        assert "/do/" in opened("admin").get(path).text


def test_a_form_needs_the_token_of_its_browser(opened: Open, full: Store) -> None:
    ann, bob = opened(), opened()
    path = "/do/pause?queue=emails"
    (form,) = [each for each in ann.page(path).forms if each["@"] == "post"]
    bob.get("/")
    for browser, given in ((ann, {}), (ann, {"csrf": "0" * 64}), (bob, form), (opened(), form)):
        reply = browser.ask("POST", path, data={"csrf": given.get("csrf", "")})
        assert reply.status_code == 403
        assert "reload" in reply.text
    assert audit_of(full) == []


def test_dead_letters_of_a_kind_are_redriven_after_a_dry_run(browser: Browser, full: Store) -> None:
    links = browser.page("/dead/emails:dead").links
    kind = next(each for each in links if "ConnectionError" in each)
    (link,) = {each for each in browser.page(kind).links if "/do/redrive" in each}
    page = do(browser, link)
    assert "moves 8 dead letters back (" in page.text
    assert f"same as kvstream --store {full._engine.place} dead redrive emails:dead" in page.text
    assert len(full.stream("emails:dead")) == 1
    assert audit_of(full) == [("ann", "redrive", "emails:dead", 8)]
    letter = full.stream("emails:dead").range()[0].id
    do(browser, f"/do/delete-letters?stream=emails:dead&id={letter}", typed="emails:dead")
    assert not full.exists("emails:dead") or len(full.stream("emails:dead")) == 0
    assert audit_of(full)[1:] == [("ann", "delete-letters", "emails:dead", 1)]
    assert "nothing to do" in browser.page("/do/cancel-redrive?stream=emails:dead").text.lower()


def test_all_letters_are_redriven_in_the_commit_of_the_audit(
    browser: Browser, full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = browser.page("/do/redrive?stream=emails:dead&all=1")
    assert "moves 9 dead letters" in page.text
    (form,) = [each for each in page.forms if each["@"] == "post"]
    with monkeypatch.context() as patch:
        patch.setattr(plan, "AUDIT_MAX", -1)
        assert browser.ask("POST", form[""], data={"csrf": form["csrf"]}).status_code == 400
    assert len(full.stream("emails:dead")) == 9
    do(browser, "/do/redrive?stream=emails:dead&all=1")
    assert len(full.stream("emails:dead")) == 0
    assert audit_of(full) == [("ann", "redrive", "emails:dead", 9)]
    assert full.stream(AUDIT).range()[0].fields[b"state"] == b"begun"


def test_a_redrive_on_a_server_has_its_audit_in_one_commit(served: Served) -> None:
    with kvstream.open(f"redis://127.0.0.1:{served.port}") as store:
        emails = Queue(store, "emails", max_deliveries=1)
        emails.get()
        emails.put_many([{"n": str(at)} for at in range(8)])
        for message in emails.get(8):
            message.nack(fatal=True, error="no")
        ids = [each.id for each in store.stream("emails:dead").range()]
        browser = Browser(app(store, auth=lambda _: User("ann", "operator")))
        do(browser, f"/do/redrive?stream=emails:dead&id={ids[0]}&id={ids[1]}")
        do(browser, "/do/redrive?stream=emails:dead&all=1&rate=1/1h")
        assert "runs: wait" in do(browser, "/do/redrive?stream=emails:dead&all=1", 400).text
        do(browser, "/do/cancel-redrive?stream=emails:dead")
        do(browser, "/do/redrive?stream=emails:dead&all=1")
        assert [len(store.stream(each)) for each in ("emails", "emails:dead")] == [8, 0]
        assert [each[1:] for each in audit_of(store)] == [
            ("redrive", "emails:dead", 2),
            ("redrive", "emails:dead", 6),
            ("cancel-redrive", "emails:dead", 1),
            ("redrive", "emails:dead", 5),
        ]
        store.run(strings.put, "note", b"text")
        block = {each.decode(): "1" for each in BLOCK}
        letter = store.stream("x:dead").add({"n": "1", **block, "dead:stream": "note"})
        do(browser, f"/do/redrive?stream=x:dead&id={letter}", 400)
        last = store.stream(AUDIT).revrange(count=1)[0].fields
        assert (last[b"what"], last[b"state"]) == (b"redrive", b"failed")
        assert len(store.stream("x:dead")) == 1


def test_a_queue_is_paused_with_all_its_priorities(browser: Browser, full: Store) -> None:
    do(browser, "/do/pause?queue=emails")
    for name in ("emails", "emails:high"):
        policy = full.stream(name).group("workers").policy()
        assert policy is not None
        assert policy.paused
    assert ">paused</span>" in browser.get("/queues").text
    do(browser, "/do/resume?queue=emails")
    assert ">paused</span>" not in browser.get("/queues").text
    assert [each[1] for each in audit_of(full)] == ["pause", "resume"]


def test_pending_entries_are_acknowledged_given_back_and_claimed(
    browser: Browser, full: Store
) -> None:
    group = full.stream("orders").group("billing")
    ids = [each.id for each in group.pending_range(count=9)]

    def path(action: str, some: list[Any]) -> str:
        chosen = "".join(f"&id={each}" for each in some)
        return f"/do/{action}?stream=orders&group=billing{chosen}"

    do(browser, path("ack", ids[:3]))
    assert group.pending().count == 67
    do(browser, path("nack", ids[3:6]))
    assert [each.consumer for each in group.pending_range(ids[3], ids[5])] == [b""] * 3
    do(browser, path("claim", ids[6:]), consumer="b2")
    assert [each.consumer for each in group.pending_range(ids[6], ids[8])] == [b"b2"] * 3
    assert "nothing to do" in browser.page(path("ack", ids[:3])).text.lower()
    browser.get(path("ack", []), 400)
    assert [each[1:] for each in audit_of(full)] == [
        ("ack", "orders", 3),
        ("nack", "orders", 3),
        ("claim", "orders", 3),
    ]
    facts = json.loads(full.stream(AUDIT).revrange(count=1)[0].fields[b"facts"])
    assert facts == {"group": "billing", "ids": [*map(str, ids[6:])], "consumer": "b2"}


def test_what_cannot_be_undone_needs_the_name(browser: Browser, full: Store) -> None:
    path = "/do/trim?stream=orders&maxlen=20"
    assert "removes the oldest 100 entries of 120" in browser.page(path).text
    assert "not typed" in do(browser, path, 400, typed="order").text
    assert len(full.stream("orders")) == 120
    do(browser, path, typed="orders")
    assert len(full.stream("orders")) == 20
    first = full.stream("orders").range(count=2)
    do(browser, f"/do/trim?stream=orders&minid={first[1].id}", typed="orders")
    do(browser, f"/do/delete-entries?stream=orders&id={first[1].id}", typed="orders")
    assert len(full.stream("orders")) == 18
    do(browser, "/do/delete-stream?stream=orders", typed="orders")
    assert not full.exists("orders")
    assert [each[1::2] for each in audit_of(full)] == [
        ("trim", 100),
        ("trim", 1),
        ("delete-entries", 1),
        ("delete-stream", 1),
    ]
    browser.get("/do/delete-stream?stream=kvstream:audit", 400)
    browser.get("/do/trim?stream=emails&maxlen=many", 400)
    browser.get("/do/trim?stream=emails", 400)


def test_names_of_strangers_are_typed_as_they_are_shown(browser: Browser, full: Store) -> None:
    for name in (b"a/b?c#d", b"\xff\x00"):
        segment = {b"a/b?c#d": "a~2Fb~3Fc~23d", b"\xff\x00": "~FF~00"}[name]
        shown = {b"a/b?c#d": "a/b?c#d", b"\xff\x00": r"\xff\x00"}[name]
        do(browser, f"/do/delete-stream?stream={segment}", typed=shown)
        assert not full.exists(name)


def test_schedules_are_run_and_deleted(browser: Browser, full: Store) -> None:
    length = len(full.stream("emails"))
    do(browser, "/do/run-schedule?stream=emails&schedule=nightly")
    assert len(full.stream("emails")) == length + 1
    do(browser, "/do/delete-schedule?stream=emails&schedule=nightly", typed="nightly")
    assert full.stream("emails").schedules() == []


def test_an_action_without_its_audit_is_not_done(
    full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = Browser(app(full, auth=lambda _: User("ann", "admin")))
    add = Stream.add

    def failing(stream: Any, *args: Any, **options: Any) -> Any:
        if stream.key == AUDIT:
            raise OSError("no space")
        return add(stream, *args, **options)

    path = "/do/delete-stream?stream=orders"
    (form,) = [each for each in browser.page(path).forms if each["@"] == "post"]
    monkeypatch.setattr(Stream, "add", failing)
    with pytest.raises(OSError, match="no space"):
        browser.ask("POST", path, data={"csrf": form["csrf"], "typed": "orders"})
    assert full.exists("orders")


def test_the_audit_says_so_when_there_is_none(browser: Browser) -> None:
    assert "Nobody has changed anything" in browser.page("/streams/kvstream:audit/entries").text
