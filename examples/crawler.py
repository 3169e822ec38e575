"""A crawler that admits so many requests a second, and fetches no page twice.

    python examples/crawler.py

Each page is a job. ``rate`` holds for all workers together; ``unique`` leaves a page out that has
been found before; a page that fails is tried again. The site is a small one on this machine. The
data is in the folder that ``DATA`` names in the environment, else in a temporary one.
"""

import os
import re
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic, sleep
from urllib.error import HTTPError
from urllib.request import urlopen

from kvstream import Jobs, current_job
from kvstream.jobs import GiveUp, Worker

PAGES = 8
TEMPORARY = tempfile.TemporaryDirectory()
jobs = Jobs(os.environ.get("DATA", TEMPORARY.name))
requests: list[str] = []


class Site(BaseHTTPRequestHandler):
    """Pages 0 to 7 that link to each other; page 3 fails at first, page 8 does not exist."""

    def do_GET(self) -> None:
        busy = self.path == "/3" and self.path not in requests
        requests.append(self.path)
        page = int(self.path[1:])
        self.send_response(503 if busy else 200 if page < PAGES else 404)
        self.end_headers()
        links = (2 * page, 2 * page + 1, page + 1)
        self.wfile.write("".join(f'<a href="/{n}">' for n in links if n <= PAGES).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@jobs.task(rate=(5, 1), retries=3, backoff=0.2, timeout=10, unique="page:{url}")
def fetch(site: str, url: str) -> int:
    try:
        with urlopen(site + url, timeout=5) as reply:
            text = reply.read().decode()
    except HTTPError as error:
        if error.code == 404:
            raise GiveUp("no such page") from error
        raise  # tried again
    links = re.findall(r'href="([^"]+)"', text)
    job = current_job()
    with job.transaction() as store:  # what was found, and the end of this job: one commit
        store.stream("pages").add({"url": url, "links": len(links)})
        for link in links:
            fetch.with_options(window=3600).enqueue(site, link)  # each page once an hour
        job.result = len(links)
    return len(links)


def crawl(site: str, pages: int) -> None:
    """Run a worker until all pages are there, and one is known to be missing."""
    stop = threading.Event()
    worker = threading.Thread(target=Worker(jobs, concurrency=4).run, args=(stop,))
    worker.start()
    fetch.with_options(window=3600).enqueue(site, "/0")
    while len(jobs.store.stream("pages")) < pages or not jobs.count(status="failed").total:
        sleep(0.01)
    stop.set()
    worker.join()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever).start()
    with jobs:
        began = monotonic()
        crawl(f"http://127.0.0.1:{server.server_port}", PAGES)
        print("took more than a second:", monotonic() - began > 1)
        found = jobs.store.stream("pages").scan()
        print("fetched:", *sorted(entry.fields[b"url"].decode() for entry in found))
        print("missing:", *(job.kwargs["url"] for job in jobs.find(status="failed").jobs))
    print("requests of /3:", requests.count("/3"), "of all:", len(requests))
    server.shutdown()
    server.server_close()
    TEMPORARY.cleanup()
