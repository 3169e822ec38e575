"""The pages of jobs, on a store in which a worker has run."""

import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvstream
from kvstream import Jobs
from kvstream.console import User, app, applications, listing
from kvstream.console.actions.plan import AUDIT
from kvstream.console.replies import API
from kvstream.jobs import Job, Middleware, Worker, step
from tests.console.browser import Browser
from tests.console.test_actions import do
from tests.console.test_api import crawl
from tests.console.test_pages import BYTES_MAX, CALLS_MAX, ROWS_MAX, counting
from tests.patience import until


class Tenant(Middleware):
    def enqueued(self, job: Job) -> None:
        job.headers["tenant"] = "acme"


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Jobs that are done, failed, queued and scheduled, and a workflow."""
    place = tmp_path_factory.mktemp("jobs") / "s"
    jobs = Jobs(place, shared=False, durability="no", middleware=[Tenant()])

    @jobs.task
    def add(a: int, b: int) -> dict[str, int]:
        kvstream.current_job().log("adds <b>")
        return {"sum": a + b}

    @jobs.task(queue="bank", retries=1, backoff=[0.01])
    def charge(card: str) -> None:
        raise ConnectionError(f"the bank has not answered for {card}")

    @jobs.workflow
    def onboard(user: str) -> str:
        step(add, 1, 2)
        return user

    for at in range(4):
        add.enqueue(at, b=1)
    for at in range(3):
        charge.enqueue(f"card-{at}")
    onboard.enqueue("ann")
    stop = threading.Event()
    worker = threading.Thread(target=Worker(jobs, concurrency=2).run, args=(stop,))
    logging.disable(logging.CRITICAL)
    try:
        worker.start()
        until(lambda: jobs.count(status=["done", "failed"]).total >= 8)
    finally:
        stop.set()
        worker.join()
        logging.disable(logging.NOTSET)
    for at in range(5):
        add.enqueue(at, b=9)
    add.with_options(delay=3600).enqueue(7, 7)
    with jobs:
        yield jobs
        assert jobs.store.check() == []


@pytest.fixture
def browser(worked: Jobs) -> Browser:
    return Browser(app(worked, auth=lambda _: User("ann", "admin")))


def test_jobs_are_listed_by_status_and_task(browser: Browser) -> None:
    page = browser.page("/jobs")
    assert re.search(r"scheduled 1 queued 5 running 0 .* failed 3 cancelled 0", page.text)
    failed = browser.page("/jobs?status=failed")
    assert failed.text.count("ConnectionError: the bank has not answered for card-") == 3
    assert "a=" not in failed.text
    assert browser.page("/jobs?task=charge&status=done").text.count("No such jobs") == 1
    assert "card-1" in browser.page("/jobs?text=card-1").text
    assert "onboard" in browser.page("/jobs?task=onboard").text
    browser.get("/jobs?status=nonsense", 400)
    assert "No job has failed" in browser.page("/jobs?name=none&status=failed").text


def test_a_job_is_shown_with_what_it_has_done(browser: Browser, worked: Jobs) -> None:
    (one, *_) = worked.find(status="done", task="add").jobs
    page = browser.page(f"/jobs/{one.id}")
    assert re.search(r"Job done Tries 1 Enqueued .* Took \d+ ms", page.text), page.text
    assert '{"sum":' in page.text
    assert "adds <b>" in page.text
    (failed, *_) = worked.find(status="failed", count=1).jobs
    page = browser.page(f"/jobs/{failed.id}")
    assert "Traceback" in page.text
    assert "in charge" in page.text
    assert re.search(r"Tries .* 1 failed .* 2 failed ", page.text), page.text
    assert re.search(r"Tries 2 Enqueued .* Queue jobs:bank Error", page.text), page.text
    assert any("/streams/jobs:dead/entries/" in each for each in page.links), page.links
    assert "card=" in page.text or failed.args[0] in page.text
    worked.tasks["onboard"].enqueue("bob", id="onboard:bob/7", delay=3600)
    (flow,) = worked.find(task="onboard", status="done").jobs
    page = browser.page(f"/jobs/{flow.id}")
    assert re.search(r"Steps .* add step done", page.text), page.text
    found = browser.get("/search?q=onboard:bob/7", 303).headers["location"]
    assert found == "/jobs/onboard:bob~2F7"
    assert "scheduled" in browser.page(found).text
    (queued, *_) = worked.find(status="queued", task="add").jobs
    page = browser.page(f"/jobs/{queued.id}")
    assert re.search(r"Job queued Tries 0 Enqueued ", page.text), page.text
    assert 'headers {"tenant": "acme"}' in page.text
    assert re.search(r" queued add .* jobs 0 - ", browser.page("/jobs?status=queued").text)
    named = worked.tasks["add"].with_options(unique="sum", window=60, delay=3600).enqueue(1, 2)
    assert browser.get("/search?q=sum", 303).headers["location"] == f"/jobs/{named.id}"
    browser.get("/jobs/018bcfe5-6800-7000-8000-000000000001", 404)
    assert browser.get(f"/search?q={one.id}", 303).headers["location"] == f"/jobs/{one.id}"


def test_jobs_and_workflows_are_there_as_json(browser: Browser) -> None:
    found = crawl(browser, f"{API}/jobs?status=failed", f"{API}/jobs", f"{API}/workers")
    jobs = [each for path, each in found.items() if path.startswith(f"{API}/jobs/")]
    (charge, *_) = [each for each in jobs if each["task"] == "charge"]
    assert [each["outcome"] for each in charge["tries"]] == ["failed", "failed"]
    assert charge["kwargs"]["card"].startswith("card-")
    assert "the bank has not answered" in charge["traceback"]
    (onboard,) = [each for each in jobs if each["is_workflow"]]
    assert [each["name"] for each in onboard["steps"]] == ["add"]
    assert found[f"{API}/jobs"]["counts"]["failed"] == 3


def test_streams_that_jobs_keep_for_themselves_are_not_listed(
    browser: Browser, worked: Jobs
) -> None:
    kept = [each.key for each in worked.store.key_infos() if b":results:" in each.key]
    assert kept
    assert ":results:" not in browser.page("/streams").text
    assert ":results:" in browser.page("/streams?all=1").text


def test_the_overview_names_the_tasks_that_failed(browser: Browser) -> None:
    text = browser.page("/").text
    assert "ConnectionError: the bank has not answered for card-" in text
    assert re.search(r"charge jobs:bank 3", text), text
    assert "jobs:ended" not in browser.page("/streams").text


@pytest.mark.parametrize("path", ["/jobs", "/jobs?status=failed", "/workers", "/jobs?task=add"])
@pytest.mark.parametrize("root", ["", API])
def test_what_the_pages_of_jobs_cost(
    browser: Browser, worked: Jobs, monkeypatch: pytest.MonkeyPatch, path: str, root: str
) -> None:
    for module in (listing, applications):  # what all viewers share is read once in five seconds
        monkeypatch.setattr(module, "KEPT_S", float("inf"))
    one = [f"/jobs/{worked.find(task=task, count=1).jobs[0].id}" for task in ("add", "onboard")]
    for each in (path, *one):
        browser.get(root + each)
        with counting(monkeypatch) as counted:
            reply = browser.get(root + each)
        assert counted.calls <= CALLS_MAX, each
        assert counted.rows <= ROWS_MAX, each
        assert len(reply.content) <= BYTES_MAX, each


def test_failed_jobs_are_retried_and_others_cancelled(browser: Browser, worked: Jobs) -> None:
    page = do(browser, "/do/retry-jobs?all=1&status=failed&task=charge")
    assert "moves 3 jobs back to the queue" in page.text
    assert worked.count(status="failed").total == 0
    ids = [each.id for each in worked.find(status="queued", task="charge").jobs]
    assert len(ids) == 3
    chosen = "&".join(f"id={each}" for each in ids[:2])
    assert "cancels 2 jobs" in do(browser, f"/do/cancel-jobs?{chosen}").text
    assert worked.count(status="cancelled").total == 2
    browser.get("/do/cancel-jobs", 400)
    audit = [each.fields for each in worked.store.stream(AUDIT).range()]
    assert [(each[b"what"], each[b"count"], each[b"state"]) for each in audit] == [
        *((b"retry-jobs", b"3", b"begun"), (b"retry-jobs", b"3", b"done")),
        *((b"cancel-jobs", b"2", b"begun"), (b"cancel-jobs", b"2", b"done")),
    ]


def test_the_place_may_be_a_directory_of_jobs(worked: Jobs, tmp_path: Path) -> None:
    worked.store.checkpoint(tmp_path / "copy")
    console = app(tmp_path / "copy", auth=lambda _: User("ann"))
    try:
        assert "onboard" in Browser(console).page("/jobs").text
        assert "sign of life" in Browser(console).page("/workers?name=other").text
    finally:
        console.close()


def test_jobs_that_an_action_does_not_fit_are_left_out(browser: Browser, worked: Jobs) -> None:
    browser.get("/do/cancel-jobs?all=1&status=expired", 400)
    browser.get("/do/retry-jobs?all=1&status=done", 400)
    (done, *_) = worked.find(status="done", count=1).jobs
    (queued, *_) = worked.find(status="queued", count=1).jobs
    page = browser.page(f"/do/cancel-jobs?id={done.id}&id={queued.id}&id=;ls")
    assert "cancels 1 job." in page.text
    assert "Left out for their status: 2 jobs" in page.text
    assert ";ls" not in page.text
    assert "Cancel all of this filter" not in browser.page("/jobs?status=expired").text


def test_ids_may_have_any_characters(browser: Browser, worked: Jobs) -> None:
    flow = worked.tasks["onboard"].enqueue("bob", id="a/b?c")
    page = browser.page("/jobs?status=queued&task=onboard")
    (link,) = {each for each in page.links if "/jobs/a~2Fb~3Fc" in each}
    assert flow.id in browser.page(link).text
    flow.cancel()


def test_arguments_and_results_may_be_hidden(worked: Jobs) -> None:
    admin = Browser(app(worked, auth=lambda _: User("ann", "admin"), redact=["card"]))
    viewer = Browser(app(worked, auth=lambda _: User("ann"), hide_values=True))
    (one, *_) = worked.find(status="done", task="add").jobs
    assert '{"sum":' in admin.page(f"/jobs/{one.id}").text
    assert '{"sum":' not in viewer.page(f"/jobs/{one.id}").text
    failed = worked.tasks["charge"].enqueue(card="4111")
    for path in ("/jobs?status=queued&task=charge", f"/jobs/{failed.id}"):
        for browser in (admin, viewer):
            assert "4111" not in browser.page(path).text
            assert "(hidden)" in browser.page(path).text
    assert "4111" not in admin.page("/streams/jobs:bank/entries").text


def test_a_worker_is_drained(browser: Browser, worked: Jobs) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=Worker(worked, queues=["bank"]).run, args=(stop,))
    thread.start()
    try:
        until(lambda: bool(worked.workers()))
        (link,) = (each for each in browser.page("/workers").links if "drain-worker" in each)
        assert "It finishes what it has in work (" in do(browser, link).text
        until(lambda: not thread.is_alive())
    finally:
        stop.set()
        thread.join()
    browser.get(link, 404)
    assert worked.store.stream(AUDIT).revrange(count=1)[0].fields[b"what"] == b"drain-worker"


def test_a_job_is_shown_whose_result_has_expired(browser: Browser, worked: Jobs) -> None:
    (*_, one) = worked.find(status="done", task="add").jobs
    worked.store.delete(worked.results.shared_key(one.id))
    (link,) = {each for each in browser.page("/jobs?status=done&task=add").links if one.id in each}
    assert re.search(r"add \S+ Job done Tries 1 ", browser.page(link).text)
