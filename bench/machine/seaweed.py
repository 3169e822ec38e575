"""SeaweedFS as a real S3 server, with credentials, in a folder of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

from bench.processes import free_port

KEY, SECRET = "kvstream", "kvstream-secret"
_START_S = 60.0
_STARTS = 3
"""Attempts at a start: another process may have taken one of the eight free ports meanwhile."""


_BESIDE_PYTHON = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
PROGRAM = shutil.which("weed", path=_BESIDE_PYTHON)
"""The program, which pip installs beside Python: that folder need not be in the PATH."""


class Seaweed:
    """One server; ``stop`` and ``go_on`` freeze it, ``kill`` and ``start`` end and begin it."""

    def __init__(self, folder: Path, volumes: int = 100, volume_mb: int = 64) -> None:
        """``volumes`` files of ``volume_mb`` are all the space that it has."""
        self._folder, self._volume_mb = folder, volume_mb
        self.grow(volumes)
        identity = {
            "name": "kvstream",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        self._config = folder / "s3.json"
        self._config.write_text(json.dumps({"identities": [identity]}))
        (folder / "data").mkdir()
        for left in reversed(range(_STARTS)):
            self.ports = [free_port() for _ in range(8)]
            try:
                self.start()
                return
            except RuntimeError:
                if not left:
                    raise

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which obstore reaches it."""
        return {
            "AWS_ENDPOINT": f"http://127.0.0.1:{self.ports[0]}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def grow(self, volumes: int) -> None:
        """Give the server space for so many volumes, from its next start on."""
        self._sizes = [f"-volume.max={volumes}", f"-master.volumeSizeLimitMB={self._volume_mb}"]

    def start(self) -> None:
        """Start the server, and wait until it takes requests."""
        parts = ("s3", "master", "volume", "filer")
        names = [f"{part}.port{kind}" for part in parts for kind in ("", ".grpc")]
        ports = [f"-{name}={port}" for name, port in zip(names, self.ports, strict=True)]
        command = [
            PROGRAM or "weed",
            "server",
            f"-dir={self._folder / 'data'}",
            "-ip=127.0.0.1",
            *ports,
        ]
        command += ["-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.config={self._config}"]
        command += [*self._sizes, "-s3.port.iceberg=0", "-master.telemetry=false"]
        command += ["-s3.port.lance=0", "-volume.preStopSeconds=0"]
        log = (self._folder / "log").open("ab")
        self._process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self._folder
        )
        log.close()
        until = time.monotonic() + _START_S
        while not self._has_started():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise RuntimeError((self._folder / "log").read_text()[-3000:])
            time.sleep(0.1)

    def _has_started(self) -> bool:
        """Return whether a bucket can be made."""
        try:
            self.make_bucket("started")
            with closing(HTTPConnection("127.0.0.1", self.ports[0], timeout=5)) as connection:
                connection.request("GET", "/status")
                return connection.getresponse().status == 200
        except OSError:
            return False

    def make_bucket(self, name: str) -> None:
        """Make a bucket: a folder of its filer."""
        connection = HTTPConnection("127.0.0.1", self.ports[6], timeout=5)
        with closing(connection):
            connection.request("POST", f"/buckets/{name}/", headers={"Content-Length": "0"})
            status = connection.getresponse().status
        if status >= 300 and status != 409:  # it is there
            raise OSError(f"the filer answers {status}")

    def stop(self) -> None:
        """Stop the server as it is: connections hang."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue a stopped server."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()
