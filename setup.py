"""What pyproject.toml cannot say in a settled way: optional extensions, and equal source archives.

With KVSTREAM_REQUIRE_EXTENSIONS=1 a build without them fails: wheels are made so.
"""

import gzip
import os
import sys
import tarfile
from shutil import which

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

MODULES = [
    "kvstream.storage._contexts",
    "kvstream.storage._log",
    "kvstream.layout._columns",
    "kvstream.layout._compiled",
    "kvstream.layout._packing",
    "kvstream.meta._plain",
    "kvstream.meta._strings",
    "kvstream.rdb._compiled",
    "kvstream.resp._waits",
    "kvstream.resp._wire",
    "kvstream.server._calls",
    "kvstream.server._compiled",
]
REQUIRED = os.environ.get("KVSTREAM_REQUIRE_EXTENSIONS") == "1"


def extension(name: str) -> Extension:
    """Return an extension without symbols for debuggers: they are most of it, and of its making."""
    # The source archive has no links: kvstream/meta is one.
    path = name.replace(".", "/").replace("kvstream/meta/", "meta/") + ".pyx"
    symbols = [] if os.name == "nt" else ["-g0"]
    return Extension(name, [path], optional=not REQUIRED, extra_compile_args=symbols)


class SideBySide(build_ext):
    """Compile as many extensions at once as there are cores."""

    def build_extensions(self) -> None:
        if not self._possible():
            missing = "no C compiler or no Python.h"
            if REQUIRED:
                sys.exit(f"{missing}: install them, or unset KVSTREAM_REQUIRE_EXTENSIONS")
            self.warn(f"{missing}: kvstream is built without its extensions")
            return
        self.parallel = os.cpu_count() or 1
        # Cython in processes of its own, where several are not in each other's way.
        for one, made in zip(
            self.extensions,
            cythonize(self.extensions, nthreads=self.parallel, force=self.force),
            strict=True,
        ):
            one.sources = made.sources
        super().build_extensions()

    def _possible(self) -> bool:
        """Tell whether it is worth the ten seconds that Cython takes."""
        program = getattr(self.compiler, "compiler_so", None)  # not where it is Microsoft's
        if not program:
            return True
        headers = (os.path.join(folder, "Python.h") for folder in self.include_dirs)
        return which(program[0]) is not None and any(map(os.path.exists, headers))


class SameArchive(sdist):
    """Make equal archives of equal trees if SOURCE_DATE_EPOCH is the time of their files.

    setuptools heeds it in wheels alone: a source archive has the times of the checkout, and the
    modes of its umask.
    """

    def make_archive(
        self,
        base_name: str,
        format: str,
        root_dir: str | None = None,
        base_dir: str | None = None,
        owner: str | None = None,
        group: str | None = None,
    ) -> str:
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        if epoch is None or format != "gztar" or root_dir is not None or base_dir is None:
            return str(super().make_archive(base_name, format, root_dir, base_dir, owner, group))

        def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime = int(epoch)
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            return member

        path = f"{base_name}.tar.gz"
        with (
            open(path, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=int(epoch)) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            archive.add(base_dir, filter=plain)  # in the order of the names
        return path


if __name__ == "__main__":  # what Cython starts may import this file
    setup(
        ext_modules=[extension(name) for name in MODULES],
        cmdclass={"build_ext": SideBySide, "sdist": SameArchive},
    )
