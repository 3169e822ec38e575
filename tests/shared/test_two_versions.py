"""One directory, processes of two versions of kvstream: what is refused, and when.

A process of another version is this code with another number: of its release, or of its layout.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.errors import InvalidArgument, UnknownLayout
from kvstream.storage.directory import LAYOUT_FILE, LAYOUT_VERSION
from kvstream.version import VERSION
from tests import forking
from tests.shared.conftest import Holder, end, kill_if_it_runs, shared

OTHER = """
import runpy, sys
from kvstream.server.commands import info
from kvstream.storage import directory

version, layout = sys.argv[2:]
info.VERSION = version
directory._LAYOUTS = range(1, int(layout) + 1)
directory._LAYOUT = f"kvstream store\\nlayout {layout}\\n".encode()
runpy.run_module("tests.shared.holder", run_name="__main__")
"""
LATER_LAYOUT = LAYOUT_VERSION + 1


@pytest.fixture
def owner(directory: Path) -> Iterator[Callable[..., Holder]]:
    """Start a process that owns the store, of another version."""
    with ExitStack() as ends:

        def start(version: str = VERSION, layout: int = LAYOUT_VERSION) -> Holder:
            pipe = subprocess.PIPE
            command = [sys.executable, "-c", OTHER, str(directory), version, str(layout)]
            process = forking.start(command, stdin=pipe, stdout=pipe)
            ends.callback(kill_if_it_runs, process)
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            return process

        yield start
    with Store.open(directory) as store:
        assert store.check() == []


@pytest.mark.parametrize("version", ["0.0.9", "0.99.0", "99.0.0"])
def test_another_version_is_refused_until_its_processes_have_ended(
    directory: Path, owner: Callable[..., Holder], version: str
) -> None:
    process = owner(version)
    with pytest.raises(InvalidArgument, match=rf"kvstream {re.escape(version)} owns .* {VERSION}"):
        shared(directory)
    end(process)
    with shared(directory) as store:
        store.stream("orders").add({"n": 1})


def test_another_patch_shares_the_store(directory: Path, owner: Callable[..., Holder]) -> None:
    process = owner(VERSION.rpartition(".")[0] + ".99")
    with shared(directory) as store:
        store.stream("orders").add({"n": 1})
        end(process)
        assert len(store.stream("orders")) == 1


def test_a_store_of_a_later_layout_is_used_by_its_owner_alone(
    directory: Path, owner: Callable[..., Holder]
) -> None:
    with shared(directory) as store:
        store.stream("orders").add({"n": 1})
    process = owner(layout=LATER_LAYOUT)
    with shared(directory) as store:
        store.stream("orders").add({"n": 2})
        end(process)
        with pytest.raises(UnknownLayout, match=f"layout {LATER_LAYOUT}"):
            store.stream("orders").add({"n": 3})
    mark = directory / LAYOUT_FILE
    mark.write_text(mark.read_text().replace(f"layout {LATER_LAYOUT}", f"layout {LAYOUT_VERSION}"))
    with Store.open(directory) as store:
        assert len(store.stream("orders")) == 2
