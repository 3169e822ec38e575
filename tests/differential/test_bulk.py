"""Streams of thousands of entries: sweeps, long pending lists and many nodes, held to the model."""

import os
from collections.abc import Iterator
from random import Random

import pytest

from tests.differential.machines import AgainstKvstream

RUNS = int(os.environ.get("KVSTREAM_EXAMPLES", "20")) // 5
OPERATIONS = 25
LOOK_EVERY = 3
"""Operations between two looks at everything; replies are compared each time."""


def pick(r: Random, ids: list[str]) -> list[str]:
    """Return some of the IDs: a run of them, or a few from anywhere, in any order."""
    if not ids:
        return ["1-0"]
    if r.random() < 0.5:
        at = r.randrange(len(ids))
        return ids[at : at + r.choice([1, 10, 100, 700])]
    return r.sample(ids, min(len(ids), r.choice([1, 7, 60])))


def appends(r: Random, last: int) -> Iterator[list[str]]:
    """Yield XADD commands that go on from milliseconds ``last``."""
    trim = r.choice([[], [], ["MAXLEN", "~", "900"], ["MAXLEN", "500"]])
    policy = r.choice([[], ["ACKED"], ["DELREF"]]) if trim else []
    for n in range(r.choice([1, 30, 250, 1100])):
        value = "v" * r.choice([1, 1, 1, 40, 300])
        yield ["XADD", "s", *trim, *policy, f"{last + n + 1}-{r.randint(0, 2)}", "f", value]


def operation(r: Random, ids: list[str]) -> list[str]:
    """Return one command over many entries."""
    some, block = pick(r, ids), pick(r, ids)
    numbered = ["IDS", str(len(block)), *block]
    group, consumer = r.choice("gh"), r.choice("cde")
    count = str(r.choice([1, 20, 100, 999]))
    whose = ["s", group, consumer]
    return r.choice(
        [
            ["XREADGROUP", "GROUP", group, consumer, "COUNT", count, "STREAMS", "s", ">"],
            ["XREADGROUP", "GROUP", group, consumer, "COUNT", count, "STREAMS", "s", ">"],
            ["XREADGROUP", "GROUP", group, consumer, "COUNT", count, "STREAMS", "s", some[0]],
            ["XREADGROUP", "GROUP", group, consumer, "CLAIM", "10", "STREAMS", "s", ">"],
            ["XACK", "s", group, *some],
            ["XACK", "s", group, *some],
            ["XDEL", "s", *some],
            ["XDELEX", "s", r.choice(["KEEPREF", "DELREF", "ACKED"]), *numbered],
            ["XACKDEL", "s", group, r.choice(["KEEPREF", "DELREF", "ACKED"]), *numbered],
            ["XNACK", "s", group, r.choice(["SILENT", "FAIL", "FATAL"]), *numbered],
            ["XCLAIM", *whose, r.choice(["0", "10"]), *some],
            ["XAUTOCLAIM", *whose, r.choice(["0", "10"]), some[0], "COUNT", count, "JUSTID"],
            ["XTRIM", "s", "MAXLEN", r.choice("~="), str(r.choice([0, 300, 1500]))],
            ["XTRIM", "s", "MINID", r.choice("~="), some[0]],
            ["XTRIM", "s", "MINID", "~", some[0], "LIMIT", "150", r.choice(["ACKED", "DELREF"])],
            ["XGROUP", "SETID", "s", group, some[0]],
            ["XGROUP", "DELCONSUMER", *whose],
            ["XREVRANGE", "s", "+", some[0], "COUNT", count],
            ["XPENDING", "s", group, "IDLE", "10", some[0], "+", count],
        ]
    )


def everything(machine: AgainstKvstream) -> None:
    machine.compare("XRANGE", "s", "-", "+")
    machine.compare("XINFO", "STREAM", "s", "FULL", "COUNT", "0")
    for group in "gh":
        machine.compare("XPENDING", "s", group)


@pytest.mark.parametrize("seed", range(RUNS))
def test_large_streams_are_the_same_in_the_model_and_in_kvstream(seed: int) -> None:
    r = Random(seed)
    machine = AgainstKvstream()
    machine.begin(entries=r.choice([10, 100]), size=4096)
    ids: list[str] = []
    try:
        for number in range(OPERATIONS):
            if r.random() < 0.3:
                for argv in appends(r, int(ids[-1].split("-")[0]) if ids else 10):
                    ids.append(machine.compare(*argv).decode())
            else:
                machine.compare(*operation(r, ids[-3000:]))
            if r.random() < 0.1:
                machine.step([r.choice(["(crash)", "(reopen)"])])
            machine.store.clock.advance(r.choice([0, 1, 10]))
            if number % LOOK_EVERY == 0:
                everything(machine)
    finally:
        machine.teardown()
