"""Real processes: pipes, kills, Ctrl-C, terminals and encodings."""

import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvstream import KVStreamError, Store
from kvstream.cli import main
from tests.cli.program import ENVIRONMENT, FIRST, Program
from tests.patience import PATIENCE_S, tries, until

BARE_TERMINAL = {
    "LC_ALL": "C",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONIOENCODING": "ascii",
}


@contextmanager
def ended(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    """Kill a process at the end of the block."""
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def all_ended(
    *processes: "subprocess.Popen[bytes]",
) -> Iterator[tuple["subprocess.Popen[bytes]", ...]]:
    """Kill processes at the end of the block, which run side by side to save time."""
    with ExitStack() as stack:
        for process in processes:
            stack.enter_context(ended(process))
        yield processes


def outcome(process: "subprocess.Popen[bytes]") -> tuple[int, bytes, bytes]:
    """Return the exit code of a process, and its stdout and stderr."""
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def read_line(process: "subprocess.Popen[bytes]") -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def write(program: Program, *arguments: str) -> str:
    """Run a writing command in this process, waiting for the store, and return its stdout."""
    done = program("--wait", f"{PATIENCE_S}s", *arguments)
    assert done.stderr == ""
    return done.stdout.strip()


def length_of(program: Program, stream: str) -> int:
    """Return the length of a stream, or -1 while it is unreadable."""
    try:
        with Store.open(program.directory, read_only=True) as store:
            return len(store.stream(stream))
    except KVStreamError:
        return -1


def test_the_program_runs_as_a_module(kvstream: Program) -> None:
    done = kvstream.run("add", "s", "a=1", "--id", "5-1")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"5-1\n", b"")


def test_a_command_imports_only_what_it_needs(kvstream: Program) -> None:
    code = (
        "import sys; from kvstream.cli import main; main(sys.argv[1:], standalone_mode=False);"
        "print([name for name in ('asyncio', 'kvstream.migration', 'kvstream.resp', 'redis')"
        " if name in sys.modules])"
    )
    words = [sys.executable, "-c", code, "--store", str(kvstream.directory), "add", "s", "a=1"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["[]"]


def test_a_closed_pipe_is_no_error(kvstream: Program) -> None:
    with Store.open(kvstream.directory) as store:
        store.stream("s").add_many([{"text": "x" * 100}] * 5_000)
    with all_ended(
        kvstream.start("range", "s"),
        kvstream.start("range", "s", "--json"),
        kvstream.start("export", "s"),
    ) as processes:
        for process in processes:
            assert process.stdout is not None
            assert process.stderr is not None
            assert read_line(process)
            process.stdout.close()
            assert process.wait(PATIENCE_S) == 141
            assert process.stderr.read() == b""


@pytest.mark.places("store", "server", "redis")
def test_ctrl_c_ends_quietly_with_130(orders: Program) -> None:
    with ended(orders.start("tail", "orders", "-f", "--poll", "20ms", "--json")) as process:
        assert json.loads(read_line(process))["id"] == FIRST
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, errors) == (130, b"")


@pytest.mark.places("store", "server", "redis")
def test_tail_shows_entries_of_other_processes(orders: Program) -> None:
    arguments = ["tail", "orders", "-f", "-n", "1", "--poll", "20ms", "--json"]
    with ended(orders.start(*arguments)) as process:
        assert json.loads(read_line(process))["id"] == "1700000004000-0"
        for number in range(3):
            added = write(orders, "add", "orders", f"n={number}")
            assert json.loads(read_line(process)) == {"id": added, "fields": {"n": str(number)}}


def test_tail_reports_that_it_waits_for_the_process_that_holds_the_store(orders: Program) -> None:
    with Store.open(orders.directory) as store:
        arguments = ["--wait", "0", "tail", "orders", "-f", "-n", "1", "--poll", "20ms", "--json"]
        process = orders.start(*arguments)
        assert process.stderr is not None
        assert f"is held by process {os.getpid()}".encode() in process.stderr.readline()
        store.stream("orders").add({"n": 1}, id="1800000000000-0")
    with ended(process):
        assert json.loads(read_line(process))["id"] == "1800000000000-0"


@pytest.mark.places("store", "server", "redis")
def test_tail_waits_for_a_stream_and_follows_a_recreated_one(kvstream: Program) -> None:
    kvstream("add", "other", "a=1")
    with ended(kvstream.start("tail", "s", "-f", "--poll", "20ms", "--json")) as process:
        for eid in ("9-0", "5-0"):
            write(kvstream, "add", "s", "a=1", "--id", eid)
            assert json.loads(read_line(process))["id"] == eid
            write(kvstream, "rm", "s")


@pytest.mark.places("store", "server", "redis")
def test_a_blocked_read_gets_an_entry_of_another_process(orders: Program) -> None:
    arguments = ["read", "orders", "--after", "$", "--block", "60s", "--json"]
    with ended(orders.start(*arguments)) as process:
        while process.poll() is None:
            write(orders, "add", "orders", "n=1")
            time.sleep(0.1)
        out, _ = process.communicate()
        assert process.returncode == 0
        assert json.loads(out.splitlines()[0])["fields"] == {"n": "1"}


def test_a_command_waits_for_the_store_as_long_as_wait_says(orders: Program) -> None:
    with Store.open(orders.directory):
        process = orders.start("--wait", "60s", "len", "orders")
        time.sleep(0.5)
        assert process.poll() is None
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, b"5\n")


def test_the_process_that_holds_the_store_is_named(orders: Program) -> None:
    # No fork: of that the system shows the command line of its first process. It waits for the
    # store, which the test opens again and again.
    command = orders.command("--wait", "60s", "import", "orders")
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with ended(process) as holder:
        assert holder.stdin is not None
        holder.stdin.write(b"\n")
        holder.stdin.flush()

        def holds() -> bool:
            assert holder.poll() is None, holder.communicate()
            return length_of(orders, "orders") < 0

        until(holds, "a process to open it", look_s=0.2)
        shown = orders("ls", code=3).stderr
        assert f"is held by process {holder.pid} (python" in shown
        assert "kvstream" in shown


def test_rows_of_a_pipe_are_committed_as_soon_as_it_pauses(kvstream: Program) -> None:
    with ended(kvstream.start("import", "s", "--quiet")) as process:
        assert process.stdin is not None
        process.stdin.write(b'{"n": 1}\n{"n": 2}\n')
        process.stdin.flush()
        until(kvstream.has_logged)
        process.kill()
    assert kvstream.one("len", "s") == {"length": 2}


def test_a_killed_import_resumes_without_loss_or_duplicates(tmp_path: Path) -> None:
    rows = 20_000
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"n": {number}}}\n' for number in range(rows)))
    for number, each in enumerate(tries()):
        kvstream = Program(tmp_path / f"store{number}")
        lengths = []
        for delay_s in (0.0, 0.05, 0.15):
            with ended(kvstream.start("import", "s", str(path))) as process:
                until(kvstream.has_logged)
                time.sleep(delay_s)
                process.kill()
            with Store.open(kvstream.directory) as store:
                lengths.append(len(store.stream("s")))
        assert lengths == sorted(lengths)
        with each:  # the kill may be too late, or cut the first record of the log short
            assert 0 < lengths[0] < rows
    kvstream("import", "s", str(path))
    with Store.open(kvstream.directory) as store:
        numbers = [int((entry.fields or {})[b"n"]) for entry in store.stream("s").scan()]
    assert numbers == list(range(rows))


def test_a_killed_export_is_resumed(kvstream: Program, tmp_path: Path) -> None:
    with Store.open(kvstream.directory) as store:
        store.stream("s").add_many([{"n": str(number), "x": "y" * 100} for number in range(10_000)])
    part, whole = tmp_path / "part.csv", tmp_path / "whole.csv"
    with ended(kvstream.start("export", "s", str(part))):
        until(lambda: part.exists() and part.stat().st_size > 100_000)
    kvstream("export", "s", str(part), "--resume")
    kvstream("export", "s", str(whole))
    assert part.read_bytes() == whole.read_bytes()


def test_commands_are_joined_by_pipes(kvstream: Program) -> None:
    kvstream("add", "s", "a=1", "b=\udcff", "--id", "5-1")
    other = Program(kvstream.directory.parent / "other")
    exporting = kvstream.start("export", "s")
    importing = other.start("import", "s", stdin=exporting.stdout)
    assert exporting.stdout is not None
    exporting.stdout.close()  # the other process has it now
    assert outcome(importing)[0] == 0
    exporting.stdout = None
    assert outcome(exporting)[0] == 0
    assert other.json("range", "s") == kvstream.json("range", "s")


def test_printing_works_with_any_encoding_of_the_terminal(kvstream: Program) -> None:
    with Store.open(kvstream.directory) as store:
        for name in ("s", "sü", b"s\xff\xc3\xbc"):
            store.stream(name).add({"Grüße": "☃", "raw": b"\xff"})
    with all_ended(
        kvstream.start("ls", env=BARE_TERMINAL),
        kvstream.start("range", "s", "--json", env=BARE_TERMINAL),
        kvstream.start("len", "\udcff☃", env=BARE_TERMINAL),
    ) as (*showing, failing):
        for process in showing:
            code, out, err = outcome(process)
            assert (code, err) == (0, b"")
            assert out.decode("ascii")
        code, _, err = outcome(failing)
        assert code == 1
        assert err.startswith(b"Error: there is no stream '")


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, program: Program, *arguments: str) -> None:
        main, side = pty.openpty()
        self.main = main
        env = {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
        self.process = program.start(*arguments, stdin=side, stdout=side, stderr=side, env=env)
        os.close(side)

    def text(self) -> str:
        """Return all output until the process ends."""
        parts = []
        while select.select([self.main], [], [], PATIENCE_S)[0]:
            try:
                parts.append(os.read(self.main, 65536))
            except OSError:  # the other side is closed
                break
        os.close(self.main)
        self.process.wait(PATIENCE_S)
        return b"".join(parts).decode()


def test_a_terminal_shows_framed_tables_with_cut_values(kvstream: Program) -> None:
    kvstream("add", "[bold]s[/]", "text=" + "x" * 200, "id=\x1b[31m", "--id", "1700000000000-0")
    commands = (["range", "[bold]s[/]"], ["ls"], ["stats"])
    terminals = [Terminal(kvstream, *command) for command in commands]
    shown, streams, stats = (terminal.text() for terminal in terminals)
    assert "─" in shown
    assert "…" in shown
    assert r"\x1b[31m" in shown
    assert "[bold]s[/]" in streams
    assert "streams" in stats


def test_a_terminal_shows_a_bar_unless_quiet(kvstream: Program, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 1}\n' * 5_000)
    other = Program(tmp_path / "other")
    loud = Terminal(kvstream, "import", "s", str(path))
    silent = Terminal(other, "import", "s", str(path), "--quiet")
    shown, quiet = loud.text(), silent.text()
    assert re.search(r"import rows.jsonl .*rows, .*/s", shown)
    assert "5,000 entries added" in shown
    assert quiet.split() == ["5,000", "entries", "added"]


def test_the_shell_completes_commands_and_streams(orders: Program) -> None:
    words = {"COMP_WORDS": "kvstream range ord", "COMP_CWORD": "2"}
    env = {**words, "_KVSTREAM_COMPLETE": "bash_complete", "KVSTREAM_STORE": str(orders.directory)}
    done = subprocess.run(
        orders.command()[:3],
        env={**os.environ, **ENVIRONMENT, **env},
        capture_output=True,
    )
    assert done.stdout.decode().split() == ["plain,orders", "plain,orders:2025"]
    with Store.open(orders.directory):
        held = CliRunner().invoke(main, env=env, prog_name="kvstream")
    assert (held.stdout.split(), held.stderr) == ([], "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("kvstream range ord", ["orders", "orders:2025"]),
        ("kvstream range orders:2", ["2025"]),
        ("kvstream group destroy orders ", ["billing"]),
        ("kvstream consumer del orders billing w", ["worker-1"]),
        ("kvstream read orders --group ", ["billing"]),
        ("kvstream read --group billing orders --consumer w", ["worker-1"]),
        ("kvstream pending orders billing --consumer w", ["worker-1"]),
        ("kvstream add 'a b' --fields '{\"a\": 1}' --approx", ["--approximate"]),
    ],
)
def test_bash_completes_names_with_colons_and_groups(
    orders: Program, tmp_path: Path, line: str, offered: list[str]
) -> None:
    program = tmp_path / "kvstream"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kvstream "$@"\n')
    program.chmod(0o755)
    script = f"""
    PATH={tmp_path}:$PATH
    source <(kvstream completion bash)
    COMP_WORDBREAKS=$' \\t\\n:=' COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)}
    _kvstream_completion kvstream
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    env = {**os.environ, **ENVIRONMENT, "KVSTREAM_STORE": str(orders.directory)}
    done = subprocess.run(["bash", "--norc", "-c", script], env=env, capture_output=True, text=True)
    assert (done.stdout.splitlines(), done.stderr) == (offered, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_each_shell_names_the_program(
    kvstream: Program, shell: str
) -> None:
    script = kvstream("completion", shell).stdout
    assert "_KVSTREAM_COMPLETE" in script
    if shell == "fish":  # else a name would end at its first comma
        assert 'string split --max 1 "," ' in script
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=script.encode(), capture_output=True)
        assert (checked.returncode, checked.stderr) == (0, b"")


def test_a_stream_is_copied_by_a_pipe_between_two_commands_on_one_store(kvstream: Program) -> None:
    with Store.open(kvstream.directory) as store:
        store.stream("s").add_many([{"text": "x" * 100}] * 5_000)
    for _ in range(3):
        with all_ended(kvstream.start("range", "s", "--json")) as (source,):
            done = kvstream.run("import", "t", "--new-ids", stdin=source.stdout)
            assert source.wait(PATIENCE_S) == 0
        assert (done.returncode, done.stdout) == (0, b"5,000 entries added\n"), done.stderr
    assert kvstream.one("len", "t") == {"length": 15_000}


@pytest.mark.places("server", "redis")
@pytest.mark.parametrize("named", [True, False])
def test_ctrl_c_in_an_import_reports_what_is_kept(kvstream: Program, named: bool) -> None:
    words = ["--source", "rows"] if named else []
    with ended(kvstream.start("import", "s", *words)) as process:
        assert process.stdin is not None
        process.stdin.write(b'{"n": 1}\n{"n": 2}\n')
        process.stdin.flush()
        until(lambda: [row["length"] for row in kvstream.json("ls", "s")] == [2])
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    rest = {
        True: b"the same command resumes at line 3",
        False: b"an import from a pipe is resumed only with --source",
    }
    assert errors == b"stdin: interrupted; 2 entries added and kept; " + rest[named] + b"\n"
