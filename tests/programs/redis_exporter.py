"""prometheus-redis-exporter of Debian: it scrapes a server and some of its streams."""

import shutil
import subprocess
import urllib.request

import redis

from tests.patience import until
from tests.ports import free_port
from tests.programs.environment import Missing, clean_environment
from tests.programs.outcomes import Outcome, Program, checks

_PROGRAM = "prometheus-redis-exporter"
_STREAM = "scraped"
_GROUP = f'db="db0",group="workers",stream="{_STREAM}"'


def _prepare(port: int) -> None:
    with redis.Redis(port=port) as client:
        client.delete(_STREAM)
        for number in range(3):
            client.xadd(_STREAM, {"number": number}, id=f"{number + 1}-0")
        client.xgroup_create(_STREAM, "workers", "0")
        client.xreadgroup("workers", "one", {_STREAM: ">"}, count=2)


def _run(port: int) -> list[Outcome]:
    program = shutil.which(_PROGRAM)
    if program is None:
        raise Missing(f"{_PROGRAM} is not installed: apt-get install {_PROGRAM}")
    _prepare(port)
    own = f"127.0.0.1:{free_port()}"
    words = [f"-redis.addr=redis://127.0.0.1:{port}", f"-web.listen-address={own}"]
    exporter = subprocess.Popen(
        [program, *words, f"-check-streams={_STREAM}"],
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def scrape() -> list[str]:
        try:
            with urllib.request.urlopen(f"http://{own}/metrics", timeout=10) as reply:
                return str(reply.read(), "utf-8").splitlines()
        except OSError:  # it has just been started
            return []

    try:
        until(scrape, "the first metrics", 0.1)
        lines = scrape()

        def has(*wanted: str) -> None:
            assert not {*wanted} - {*lines}, [x for x in lines if x.startswith("redis_")]

        return checks(
            reaches_the_server=lambda: has(
                "redis_up 1", 'redis_exporter_last_scrape_error{err=""} 0'
            ),
            counts_keys=lambda: has("redis_connected_clients 1"),
            shows_the_stream=lambda: has(f'redis_stream_length{{db="db0",stream="{_STREAM}"}} 3'),
            shows_the_group=lambda: has(
                f"redis_stream_group_messages_pending{{{_GROUP}}} 2",
                f"redis_stream_group_consumers{{{_GROUP}}} 1",
            ),
            shows_the_consumer=lambda: has(
                f'redis_stream_group_consumer_messages_pending{{consumer="one",{_GROUP}}} 2'
            ),
        )
    finally:
        exporter.kill()
        exporter.wait()


def _version() -> str:
    program = shutil.which(_PROGRAM)
    if program is None:
        return ""
    shown = subprocess.run([program, "--version"], capture_output=True, text=True)
    return (shown.stdout + shown.stderr).partition("Exporter ")[2].partition("-")[0]


PROGRAMS = (
    Program(
        _PROGRAM,
        _version(),
        "Debian",
        "it scrapes the server, and the length, groups and consumers of a stream",
        _run,
    ),
)
