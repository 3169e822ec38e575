"""Files of an archive, on whatever file system Spark reads: small texts, and moves.

Hadoop's FileSystem does it, inside the driver's JVM. A text appears whole or not at all.
"""

import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Folder:
    """A folder by its URI."""

    def __init__(self, spark: "SparkSession", uri: str) -> None:
        self.uri = uri.rstrip("/")
        context: Any = spark.sparkContext
        self._path = context._jvm.org.apache.hadoop.fs.Path
        configuration = context._jsc.hadoopConfiguration()
        self._files: Any = self._path(self.uri).getFileSystem(configuration)

    def at(self, *parts: str) -> str:
        """Return the URI of a file in it."""
        return "/".join((self.uri, *parts))

    def _of(self, relative: str) -> Any:
        # A constructor that does not look at %-escapes, which names of partitions have.
        return self._path(self._path(self.uri), relative) if relative else self._path(self.uri)

    def exists(self, relative: str) -> bool:
        return bool(self._files.exists(self._of(relative)))

    def names(self, relative: str) -> list[str]:
        """Return the names in a folder, sorted; [] where it is not there."""
        if not self.exists(relative):
            return []
        return sorted(
            each.getPath().getName() for each in self._files.listStatus(self._of(relative))
        )

    def files(self, relative: str) -> list[str]:
        """Return all files below a folder, relative to it, but for hidden ones."""
        if not self.exists(relative):
            return []
        found = []
        top = self._files.getFileStatus(self._of(relative)).getPath().toString()
        listed = self._files.listFiles(self._of(relative), True)
        while listed.hasNext():
            name = listed.next().getPath().toString().removeprefix(top).lstrip("/")
            if not any(part.startswith(("_", ".")) for part in name.split("/")):
                found.append(name)
        return sorted(found)

    def read(self, relative: str) -> str:
        """Return a text."""
        stream = self._files.open(self._of(relative))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, relative: str, text: str) -> None:
        """Write a text under a name that nothing has."""
        partial = f"{relative}.{uuid.uuid4().hex}.partial"
        stream = self._files.create(self._of(partial))
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self.move(partial, relative)

    def move(self, source: str, target: str) -> None:
        """Give a file another name, making the folders that lead there."""
        self._files.mkdirs(self._of(target).getParent())
        if not self._files.rename(self._of(source), self._of(target)):
            raise OSError(f"{self.at(source)} could not be moved to {self.at(target)}")

    def remove(self, relative: str) -> None:
        """Remove a file, or a folder with all in it."""
        self._files.delete(self._of(relative), True)
