"""A reader who follows docs/queues.md from top to bottom, in one directory, sees what it shows."""

import re
import shlex
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from kvstream import Jobs, Message, Queue, Stream
from kvstream.jobs import Task
from kvstream.jobs.flow.rules import FlowRules
from kvstream.jobs.task import Options
from kvstream.meta.policy import GroupPolicy
from tests.server.conftest import Served
from tests.test_readme import ROOT, masked, run

PAGE = (ROOT / "docs" / "queues.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
"""Blocks of Python, each with the output shown below it."""
COMMANDS = re.findall(r"^\$ (kvstream --store .*)\n((?:(?!\$ |```).*\n)+)", PAGE, re.MULTILINE)
"""Commands, each with the output shown below it."""
REQUESTS = re.findall(r"^> (.*)$", PAGE, re.MULTILINE)


def test_blocks_and_commands_print_what_is_shown(tmp_path: Path) -> None:
    assert len(BLOCKS) == PAGE.count("```python")
    assert len(COMMANDS) >= 5
    for block, shown in BLOCKS:
        done = run(tmp_path, "-c", block)
        assert (done.stdout, done.stderr) == (shown, ""), block
    for command, shown in COMMANDS:
        done = run(tmp_path, "-m", *shlex.split(command))
        assert masked(done.stdout) == masked(shown), done.stderr


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "served")
    yield served
    served.stop()


def test_the_server_accepts_the_shown_requests(served: Served) -> None:
    assert len(REQUESTS) >= 12
    client: Any = served.client()
    for request in REQUESTS:
        words = shlex.split(request)
        assert client.execute_command(*words) is not None, request
        if words[0] in ("KVSTREAM.EXTEND", "KVSTREAM.NACK"):
            assert client.xpending("emails", "workers")["pending"] == 1


def test_every_rule_of_a_policy_is_in_the_table() -> None:
    rules = PAGE.partition("## Rules")[2].partition("\n## ")[0]
    others = {"paused", "keyed_tree", "backoff_cap_ms", "jitter_percent", "rate_ms"}
    for name in GroupPolicy.__dataclass_fields__.keys() - others:
        plain = name.removesuffix("_ms").removesuffix("_count").removesuffix("_idle")
        assert f"{plain}=" in rules, name


def test_every_option_for_users_of_other_systems_exists() -> None:
    page = (ROOT / "docs" / "queues-from-others.md").read_text()
    right = [row.split(" | ")[-1] for row in page.splitlines() if row.startswith("| ")]
    named = set(re.findall(r"\b([a-z_]+)=", "\n".join(right)))
    named |= set(re.findall(r"`((?:max|min)_[a-z_]+)`", "\n".join(right)))
    functions: list[Any] = [Queue.__init__, Queue.put, Message.nack, Stream.set_retention]
    functions += [Stream.add, Jobs.__init__, Jobs.task, Jobs.cron, Task.enqueue]
    known = {name for function in functions for name in signature(function).parameters}
    known |= FlowRules.__annotations__.keys() | Options.__annotations__.keys()
    assert named <= known, named - known
