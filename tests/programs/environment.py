"""Install programs of PyPI, npm and Debian at pinned versions, each into a folder of its own,
but those that run in CI into one.

The folders lie in `.venv/programs` and serve every later run; `make clean` removes them.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from pathlib import Path

CACHE = Path(sys.prefix) / "programs"
PYTEST = ("pytest==9.2.0", "pytest-asyncio==1.5.0", "pytest-timeout==2.4.0")
CORE = {"faststream": "0.7.8", "redis": "8.1.0", "taskiq": "0.13.0", "taskiq-redis": "1.2.4"}
"""The programs of PyPI that also run in CI, at their versions."""
INSTALL_S_MAX = 600
_READY = ".ready"
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_APT_SOURCES = (Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d"))


class Missing(Exception):
    """A program cannot be installed; the message says why."""


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment variables of a program, without those of pytest and coverage."""
    ours = ("PYTEST_", "COV_", "COVERAGE_", "KVSTREAM_", "PYTHONPATH", "DJANGO_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    return {**kept, **more}


def _install(name: str, content: tuple[str, ...], make: Callable[[Path], None]) -> Path:
    """Return the folder of an installation; install into it unless an earlier run has."""
    digest = hashlib.sha256("\n".join((sys.version, *content)).encode()).hexdigest()[:12]
    folder = CACHE / f"{name}-{digest}"
    if not (folder / _READY).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder)
        (folder / _READY).touch()
    return folder


def _run(*command: str | Path, folder: Path | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_S_MAX,
    )
    if done.returncode != 0:
        raise Missing(f"{' '.join(map(str, command[:6]))} ... failed: {done.stdout[-600:]}")


def python_with(name: str, *requirements: str) -> Path:
    """Return the interpreter of a virtual environment with these packages of PyPI."""

    def make(folder: Path) -> None:
        _run(sys.executable, "-m", "venv", "--without-pip", folder)
        interpreter = folder / "bin" / "python"
        _run(*_PIP, "--python", interpreter, "install", "--quiet", "--no-compile", *requirements)

    return _install(name, requirements, make) / "bin" / "python"


def core_python() -> Path:
    """Return the interpreter of the one environment of ``CORE``.

    An environment for each would install and compile pytest and redis-py three times.
    """
    return python_with("core", *PYTEST, *(f"{name}=={version}" for name, version in CORE.items()))


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as packed:
        # Debian's Python 3.11.2 has no filters.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(folder)


def source_of(package: str, version: str) -> Path:
    """Return the unpacked source distribution of a PyPI package, which includes the tests."""

    def make(folder: Path) -> None:
        wanted = f"{package}=={version}"
        options = ("--quiet", "--no-deps", "--no-binary", package, "--dest", folder)
        _run(*_PIP, "download", *options, wanted)
        (archive,) = folder.glob("*.tar.gz")
        _unpack(archive, folder)

    folder = _install(f"{package}-source", (version,), make)
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    return unpacked


def node_program() -> str:
    """Return the path of Node.js: the system's, or that of the development tools."""
    path = shutil.which("node", path=f"{os.environ['PATH']}:{sysconfig.get_path('scripts')}")
    if path is None:
        raise Missing("Node.js is not installed: make clients")
    return path


def node_modules(name: str, *packages: str) -> Path:
    """Return the folder `node_modules` with these packages of npm."""

    def make(folder: Path) -> None:
        npm = Path(node_program()).with_name("npm")
        (folder / "package.json").write_text('{"private": true}')
        _run(
            npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages, folder=folder
        )

    return _install(name, packages, make) / "node_modules"


def _write_source_lists(folder: Path) -> None:
    """Write Debian's package lists of the system as lists of source packages."""
    found = [path for place in _APT_SOURCES for path in (place, *place.glob("*")) if path.is_file()]
    for path in found:
        text = path.read_text()
        if "/debian" in text:
            text = re.sub(r"^(Types:\s*)?deb(?=\s)", r"\1deb-src", text, flags=re.MULTILINE)
            (folder / path.name).write_text(text)


def debian_source(package: str) -> Path:
    """Return the unpacked original source of a Debian package.

    The lists of source packages are in their own folder, so the lists of the system do not change.
    """

    def make(folder: Path) -> None:
        if shutil.which("apt-get") is None:
            raise Missing("Debian's apt-get is not installed")
        parts = folder / "parts"
        for each in (parts, folder / "lists" / "partial", folder / "archives" / "partial"):
            each.mkdir(parents=True)
        _write_source_lists(parts)
        places = {
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": parts,
            "Dir::State::lists": folder / "lists",
            "Dir::Cache": folder,
            "APT::Sandbox::User": "root",
        }
        options = [word for key, place in places.items() for word in ("-o", f"{key}={place}")]
        _run("apt-get", *options, "-q", "update", folder=folder)
        _run("apt-get", *options, "-q", "source", "--download-only", package, folder=folder)
        (archive,) = folder.glob("*.orig.tar.*")
        _unpack(archive, folder / "source")

    folder = _install(f"{package}-debian", (package,), make)
    unpacked = list((folder / "source").iterdir())
    return unpacked[0] if len(unpacked) == 1 else folder / "source"
