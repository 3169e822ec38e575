"""What pyproject.toml cannot say in a settled way: the extensions that a build may do without.

With KVSTREAM_REQUIRE_EXTENSIONS=1 a build without them fails: wheels are made so.
"""

import os
import sys
from shutil import which

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

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


if __name__ == "__main__":  # what Cython starts may import this file
    setup(ext_modules=[extension(name) for name in MODULES], cmdclass={"build_ext": SideBySide})
