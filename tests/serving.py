"""``kvstream serve`` as a process of its own, for tests in which a user would have one too."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cli.program import ENVIRONMENT
from tests.forking import start
from tests.patience import PATIENCE_S, worked_s
from tests.server.asking import Asker

KILOBYTE = 1024
_ADDRESS = re.compile(r" at 127\.0\.0\.1:(\d+)(?: and \S+ with TLS)?$")


class ServerProcess:
    """A serving process; it runs from its making until it is stopped or killed."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        **process: Any,
    ) -> None:
        """``process``: options of ``subprocess.Popen``."""
        self.directory = directory
        command = [sys.executable, "-m", "kvstream", "serve", "--dir", str(directory)]
        self.process = start(
            [*command, "--port", "0", *arguments],
            env={
                **(os.environ if environment is None else environment),
                **ENVIRONMENT,
                "PYTHONFAULTHANDLER": "1",  # it writes the stacks of its threads if it hangs
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **process,
        )
        assert self.process.stdout is not None
        found = _ADDRESS.search(self.process.stdout.readline().strip())
        if found is None:
            self.process.kill()
            raise AssertionError(self.process.communicate()[1])
        self.port = int(found[1])

    def asker(self, protocol: int = 2) -> Asker:
        """Return a connection that shows replies as they are."""
        return Asker(self.port, protocol)

    def information(self, section: str) -> dict[str, str]:
        """Return the fields of a section of INFO."""
        with self.asker() as asker:
            lines = asker.ask("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    @property
    def resident(self) -> int:
        """The bytes of memory that the process holds."""
        return self._status("VmRSS")

    @property
    def peak(self) -> int:
        """The most that it has ever held."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        """Let the most that it has held be what it holds now."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def _status(self, field: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * KILOBYTE

    @property
    def worked_s(self) -> float:
        """The seconds that it has worked, whatever else the machine did."""
        return worked_s(self.process.pid)

    @property
    def descriptors(self) -> int:
        """The files and sockets that the process has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def kill(self) -> None:
        """Kill it as ``kill -9`` does; fail if it has written errors before."""
        self.process.send_signal(signal.SIGKILL)
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        assert (self.process.returncode, errors) == (-signal.SIGKILL, ""), errors

    def stop(self, warned: str | None = None) -> None:
        """Stop it by SIGTERM; fail if it has written errors, or does not end with 0.

        ``warned`` is a text that its warnings may contain.
        """
        self.process.send_signal(signal.SIGTERM)
        try:
            _, errors = self.process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            stacks = self.process.communicate()[1]
            raise AssertionError(f"it does not stop:\n{stacks}") from None
        if warned is not None:
            lines = errors.splitlines(keepends=True)
            errors = "".join(x for x in lines if not (" WARNING " in x and warned in x))
        assert (self.process.returncode, errors) == (0, ""), errors

    def end(self) -> None:
        """Stop it if it still runs, also if a test has failed while it was frozen."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGCONT)
            self.stop()
