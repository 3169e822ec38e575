"""Actions with forms: seek, put again, rules, purge, pause all; and jobs by a filter."""

import json
from typing import Any

import pytest

from kvstream import Jobs, ManualClock, Queue, Store
from kvstream.console import User, app
from kvstream.console.actions.plan import AUDIT
from kvstream.jobs.testing import Testing
from kvstream.operations.delivery.dead import BLOCK
from kvstream.types.ids import StreamID
from tests.console.browser import Browser
from tests.console.conftest import Open
from tests.console.test_actions import audit_of, do


@pytest.fixture
def browser(opened: Open) -> Browser:
    return opened()


def last_audit(store: Store) -> dict[str, Any]:
    (entry,) = store.stream(AUDIT).revrange(count=1)
    fields = {name.decode(): value.decode() for name, value in entry.fields.items()}
    return {**fields, "facts": json.loads(fields["facts"])}


def test_a_group_goes_on_at_another_place(browser: Browser, full: Store) -> None:
    stream = full.stream("orders")
    group, ids = stream.group("billing"), [each.id for each in stream.range()]
    path = "/do/seek?stream=orders&group=billing&to="
    page = do(browser, f"{path}{ids[99]}")
    assert f"goes from {ids[69]} to {ids[99]}. 30 entries between them will not" in page.text
    assert f" group setid orders billing {ids[99]} It is" in page.text
    assert group.info().last_delivered_id == ids[99]
    assert [each.id for each in group.consumer("c").read(1)] == [ids[100]]
    # from a time on: the entries of that millisecond are delivered
    page = do(browser, f"{path}{ids[50].ms}")
    assert "51 entries between them will be delivered again" in page.text
    assert group.consumer("c").read(1)[0].id == ids[50]
    do(browser, f"{path}-")
    assert group.info().last_delivered_id == StreamID(0, 0)
    do(browser, f"{path}$")
    assert group.info().last_delivered_id == ids[-1]
    assert "nothing to do" in browser.page(f"{path}$").text.lower()
    browser.get(f"{path}tomorrow", 400)
    assert last_audit(full)["facts"]["count"] == 120
    assert "Go on from there" in browser.page("/streams/orders/groups/billing").text


def test_a_dead_letter_is_put_again_with_other_values(browser: Browser, full: Store) -> None:
    letter = full.stream("emails:dead").range()[0]
    path = f"/do/put?stream=emails:dead&id={letter.id}"
    assert any(f"id={letter.id}" in each for each in browser.page("/dead/emails:dead").links)
    form = next(each for each in browser.page(path).forms if each["@"] == "post")
    assert form["v0"] == letter.fields[b"to"].decode()
    origin = letter.fields[b"dead:stream"]
    before = full.stream(origin).info().entries_added
    do(browser, path, v0="new@example.org", name0="note", value0="a\r\nb", name1="")
    assert full.stream("emails:dead").get(letter.id) is None
    assert full.stream(origin).info().entries_added == before + 1
    put = full.stream(origin).revrange(count=1)[0]
    assert put.pairs == ((b"to", b"new@example.org"), (b"task", b"mail"), (b"note", b"a\nb"))
    found = last_audit(full)
    assert found["what"] == "put"
    assert found["facts"]["changed"] == ["to", "note"]
    assert "example.org" not in str(found)
    browser.get(path, 404)


def test_no_dead_letter_leads_into_the_audit(
    browser: Browser, full: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that says that it comes from the audit would be written there as if it were one."""
    block = {each.decode(): "1" for each in BLOCK}
    letter = full.stream("x:dead").add(
        {"who": "boss", **block, "dead:stream": AUDIT, "dead:id": "1-1"}
    )
    page = browser.page(f"/do/put?stream=x:dead&id={letter}", 400)
    assert "names no stream that it may go back to" in page.text
    page = browser.page(f"/do/redrive?stream=x:dead&id={letter}")
    assert "1 entry would stay: they name no stream to go to" in page.text
    assert "nothing to do" in page.text
    page = browser.page("/do/redrive?stream=x:dead&all=1")
    assert "1 entry would stay: they name no stream to go to" in page.text
    assert "nothing to do" in page.text
    monkeypatch.setattr("kvstream.console.actions.letters.TRIED_MAX", 0)  # no dry run
    do(browser, "/do/redrive?stream=x:dead&all=1")
    assert len(full.stream("x:dead")) == 1
    assert audit_of(full) == [("ann", "redrive", "x:dead", 1)]


def test_letters_of_a_filter_are_redriven_at_a_rate(
    browser: Browser, full: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters, path = full.stream("emails:dead"), "/do/redrive?stream=emails:dead&all=1"
    last = letters.revrange(count=1)[0].id
    block = {**{each.decode(): "1" for each in BLOCK}, "dead:stream": "emails", "dead:id": "1-1"}
    for task in ("bill", "bill", "late"):
        clock.advance(3_600_000)
        letters.add({"task": task, **block})
    form = next(each for each in browser.page("/dead/emails:dead").forms if "rate" in each)
    assert form.keys() >= {"all", "stream", "task", "since", "until"}
    for bound in ("TRIED_MAX", "TRIED_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(f"kvstream.console.actions.letters.{bound}", 11)
            page = browser.page(f"{path}&task=bill")
        assert "moves up to 12 dead letters of the task bill, too many to be tried" in page.text
    page = do(browser, f"{path}&task=bill&since=now-90m")
    assert "moves 1 dead letter back (1 to emails)" in page.text
    assert "There are 12 in all" in page.text
    page = do(browser, f"{path}&task=bill")
    assert "moves 1 dead letter back (1 to emails)" in page.text
    assert " dead redrive --where task=bill emails:dead It is" in page.text
    assert [each.fields[b"task"] for each in letters.range()][8:] == [b"mail", b"late"]
    page = browser.page(f"{path}&until=now-30m&rate=2/1h")
    assert "moves 9 dead letters back" in page.text
    assert "At most 2 in 1h" in page.text
    assert "in all it takes 4h" in page.text
    action = next(each for each in page.forms if each["@"] == "post")[""]
    assert f"until={last}" in action  # the letters of the preview, however late the form is sent
    do(browser, f"{path}&until=now-30m&rate=2/1h")
    status = Queue(full, "emails").redrive_status()
    assert status is not None
    assert (status.state, status.moved, len(letters)) == ("running", 2, 8)
    found = last_audit(full)
    assert (found["count"], found["state"], found["facts"]["rate"]) == ("9", "begun", "2/1h")
    assert "nothing to do" in browser.page(f"{path}&task=none").text.lower()
    for wrong in ("soon", "0/1m", "5/", "5/0s"):
        assert "is no rate" in browser.page(f"{path}&rate={wrong}", 400).text
    assert "write 500/3s, which is as fast" in browser.page(f"{path}&rate=10000/1m", 400).text
    browser.get(f"{path}&since=tomorrow-ish", 400)
    hidden = Browser(app(full, auth=lambda _: User("ann", "admin"), redact=["task"]))
    assert "hidden" in hidden.page(f"{path}&task=mail", 400).text


def test_an_entry_is_put_again_as_it_is_however_strange(browser: Browser, full: Store) -> None:
    """What a form cannot bring back stays: binary, long and hidden values."""
    stream = full.stream("strange")
    pairs = [
        *((b"\xff", b"\x00\xff"), (b"text", "two\nlines\t\u20ac".encode()), (b"", b"")),
        *((b"long", b"x" * 9000), (b"secret", b"s3cret"), (b"text", b"twice")),
    ]
    eid = stream.add(pairs)
    hidden = Browser(app(full, auth=lambda _: User("ann", "operator"), redact=["secret"]))
    path = f"/do/put?stream=strange&id={eid}"
    text = hidden.get(path).text
    assert "3 values cannot be edited here" in hidden.page(path).text
    assert "s3cret" not in text
    do(hidden, path, v1="two\r\nlines\t\u20ac")
    assert stream.revrange(count=1)[0].pairs == tuple(pairs)
    assert len(stream) == 2
    assert last_audit(full)["facts"]["changed"] == []


def test_an_entry_is_added_also_to_a_new_stream(browser: Browser, full: Store) -> None:
    page = do(browser, "/do/add?new=a/b%2Bc", name0="sku", value0="a\r\nb", name2="qty", value2="2")
    assert "to a new stream: a/b+c" in page.text
    assert full.stream("a/b+c").range()[0].pairs == ((b"sku", b"a\nb"), (b"qty", b"2"))
    found = last_audit(full)
    assert (found["what"], found["target"], found["facts"]) == ("add", "a/b+c", {"is_new": True})
    do(browser, "/do/add?stream=a~2Fb+c", 400)
    do(browser, "/do/add?stream=orders", name0="sku", value0="z")
    assert full.stream("orders").revrange(count=1)[0].pairs == ((b"sku", b"z"),)
    for name in ("kvstream:audit", "kvstream:new"):
        browser.get(f"/do/add?stream={name}", 400)
        browser.get(f"/do/add?new={name}", 400)
    browser.get("/do/add", 404)
    assert any("/do/add" in each for each in browser.page("/streams/orders").links)
    assert any("new" in each for each in browser.page("/streams").forms)


def test_a_stream_gets_rules_of_retention(browser: Browser, full: Store) -> None:
    stream, path = full.stream("orders"), "/do/retention?stream=orders"
    page = do(browser, f"{path}&max_age=100s&max_length=100&latest=sku", typed="orders")
    old = 120 - stream.count("now-100s")
    assert f"older than 1m 40s (now {old} entries)" in page.text, page.text
    assert "all but the last 100 (now 20 entries); all but the last of each sku" in page.text
    assert "queue retention --max-age 100s --max-length 100 --latest sku orders It is" in page.text
    rules = stream.retention()
    assert rules is not None
    assert (rules.max_age_ms, rules.max_length, rules.latest) == (100_000, 100, b"sku")
    assert (rules.acked, rules.force, rules.max_bytes) == (False, False, 0)
    form = next(each for each in browser.page("/streams/orders").forms if "max_age" in each)
    assert (form["max_age"], form["max_length"], form["latest"]) == ("100s", "100", "sku")
    assert last_audit(full)["facts"]["before"] == "--off"
    do(browser, f"{path}&acked=1&force=1", 400, typed="order")
    do(browser, f"{path}&acked=1&force=1", typed="orders")
    rules = stream.retention()
    assert rules is not None
    assert (rules.acked, rules.force, rules.max_age_ms) == (True, True, 0)
    page = do(browser, f"{path}&max_age=&acked=")
    assert "No entry leaves the stream" in page.text
    assert stream.retention() is None
    assert "nothing to do" in browser.page(path).text.lower()
    for wrong in ("max_age=old", "max_age=0", "max_length=many", "max_bytes=0", "force=1"):
        browser.get(f"{path}&{wrong}", 400)
    browser.get("/do/retention?stream=none&acked=1", 404)
    assert not full.exists("none")


def test_a_consumer_is_deleted_with_what_is_pending(browser: Browser, full: Store) -> None:
    path = "/do/delete-consumer?stream=orders&group=billing&consumer=b1"
    group, length = full.stream("orders").group("billing"), len(full.stream("orders"))
    pages = browser.page("/streams/orders/groups/billing").links
    assert any(each.endswith("consumer=b1") and "/do/" in each for each in pages)
    do(browser, path, 400, typed="b2")
    page = do(browser, path, typed="b1")
    assert "drops its 60 pending entries" in page.text
    assert " consumer del --drop-pending orders billing b1 It is" in page.text
    assert [each.name for each in group.consumers()] == [b"b2"]
    assert (group.info().pending, len(full.stream("orders"))) == (10, length)
    assert last_audit(full)["facts"] == {"group": "billing", "consumer": "b1", "pending": 60}
    browser.get(path, 404)
    group.pause()
    assert "do/resume?queue=orders&group=billing" in browser.get(
        "/streams/orders/groups/billing"
    ).text.replace("&amp;", "&")


def test_rules_of_a_queue_are_changed_on_all_priorities(browser: Browser, full: Store) -> None:
    path = "/do/policy?queue=emails"
    form = next(each for each in browser.page(path).forms if each["@"] == "post")
    assert form["max_deliveries"] == "3"
    do(browser, path, max_deliveries="7", lease="90s", backoff="1s..1h", rate="100/1m")
    for name in ("emails", "emails:high"):
        rules = full.stream(name).group("workers").policy()
        assert rules is not None
        assert (rules.max_deliveries, rules.lease_ms) == (7, 90_000)
        assert (rules.backoff_ms, rules.backoff_cap_ms) == ((1000,), 3_600_000)
        assert (rules.rate_count, rules.rate_ms) == (100, 60_000)
    form = next(each for each in browser.page(path).forms if each["@"] == "post")
    assert (form["backoff"], form["rate"], form["lease"]) == ("1s..1h", "100/1m", "90s")
    do(browser, path, backoff="1s,10s", rate="0", lease="0")
    rules = full.stream("emails").group("workers").policy()
    assert rules is not None
    assert (rules.backoff_ms, rules.rate_count, rules.lease_ms) == ((1000, 10_000), 0, 0)
    assert last_audit(full)["facts"]["before"]["lease"] == "90s"
    for wrong in ({"lease": "soon"}, {"rate": "many"}, {"backoff": "1h..1s"}, {}):
        do(browser, path, 400, **wrong)
    assert full.stream("emails").group("workers").policy() == rules


def test_a_queue_is_emptied(browser: Browser, full: Store) -> None:
    path = "/do/purge?queue=emails"
    page = browser.page(path)
    assert "deletes 22 messages for good, delayed ones too" in page.text, page.text
    assert "0 messages in work can be finished" in page.text
    do(browser, path, 400, typed="email")
    do(browser, path, typed="emails")
    assert [len(full.stream(name)) for name in ("emails", "emails:high")] == [0, 0]
    assert full.stream("emails").delayed_count() == 0
    assert len(full.stream("emails:dead")) == 9
    states = [each.fields[b"state"] for each in full.stream(AUDIT).range()]
    assert states == [b"begun", b"done"]
    assert last_audit(full)["count"] == "22"


def test_all_queues_are_paused_and_resumed(browser: Browser, full: Store) -> None:
    Queue(full, "reports").get()
    page = do(browser, "/do/pause-all")
    assert "no more messages of 2 queues: emails, reports." in page.text
    assert browser.get("/queues").text.count(">paused</span>") == 2
    assert "nothing to do" in browser.page("/do/pause-all").text.lower()
    do(browser, "/do/resume-all")
    assert ">paused</span>" not in browser.get("/queues").text
    assert [each[1:] for each in audit_of(full)] == [("pause-all", "*", 2), ("resume-all", "*", 2)]


# --- jobs by a filter -----------------------------------------------------------------------------


@pytest.fixture
def failing() -> Any:
    jobs = Jobs("unused", shared=False)

    @jobs.task
    def charge(at: int) -> int:
        if at < 5:
            raise ConnectionError(f"bank {at}")
        return at

    with jobs.test() as testing:
        for at in range(9):
            charge.enqueue(at)
            testing.clock.advance(1000)
        yield jobs, testing
        assert jobs.store.check() == []


def test_what_fails_after_the_preview_is_not_changed(failing: tuple[Jobs, Testing]) -> None:
    jobs, testing = failing
    browser = Browser(app(jobs, auth=lambda _: User("ann", "admin")))
    page = browser.page("/do/delete-jobs?status=failed&all=1")
    assert "deletes 5 jobs for good" in page.text
    assert " jobs delete --name jobs --status failed --until" in page.text
    (form,) = [each for each in page.forms if each["@"] == "post"]
    testing.clock.advance(1000)
    jobs.tasks["charge"].enqueue(0)
    given = {name: value for name, value in form.items() if name not in ("", "@")}
    reply = browser.ask("POST", form[""], data={**given, "typed": "jobs"})
    assert reply.status_code == 303, reply.text
    assert jobs.count(status="failed").total == 1
    assert last_audit(jobs.store)["count"] == "5"
    assert last_audit(jobs.store)["state"] == "done"


def test_jobs_of_a_filter_are_retried_and_deleted(failing: tuple[Jobs, Testing]) -> None:
    jobs, testing = failing
    browser = Browser(app(jobs, auth=lambda _: User("ann", "admin")))
    with testing.held():
        page = do(browser, "/do/retry-jobs?status=failed&text=bank+3&all=1")
        assert "moves 1 job back" in page.text
        assert jobs.count(status="queued").total == 1
        do(browser, "/do/cancel-jobs?status=queued&all=1")
        assert jobs.count(status="cancelled").total == 1
    do(browser, "/do/delete-jobs?status=done&task=charge&all=1", typed="jobs")
    assert jobs.count(status="done").total == 0
    browser.get("/do/delete-jobs?status=queued&all=1", 400)
    browser.get("/do/delete-jobs?id=x", 400)
    assert "at no rate" in browser.page("/do/retry-jobs?status=failed&all=1&rate=1/1s", 400).text
    assert "Delete all of this filter" in browser.get("/jobs?status=failed").text


def test_an_action_that_fails_in_the_middle_says_so_in_the_audit(
    failing: tuple[Jobs, Testing], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, _ = failing
    browser = Browser(app(jobs, auth=lambda _: User("ann", "admin")))

    def fail(*_: Any) -> Any:
        raise OSError("no space left")

    monkeypatch.setattr("kvstream.jobs.listing.changes._entries_of", fail)
    with pytest.raises(OSError, match="no space"):
        do(browser, "/do/delete-jobs?status=failed&all=1", typed="jobs")
    assert jobs.count(status="failed").total == 5
    found = last_audit(jobs.store)
    assert (found["state"], found["error"]) == ("failed", "no space left")
