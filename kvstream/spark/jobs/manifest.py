"""What an archive has: one small text for each run that was completed.

::

    <folder>/stream=orders/day=2026-11-21/000003-part-...parquet     what anybody may read
    <folder>/_kvstream/000003.json                                   what counts
    <folder>/_kvstream/staged-<uuid>/                                a run under way, or dead

A run's files are written apart, counted, moved into place, and counted as archived once the text
is there. Files with the number of a run that never got so far are removed by the next one. It
knows names and texts, nothing of streams' places.
"""

import json
from dataclasses import asdict, dataclass, field

from kvstream.ids import MIN_ID, StreamID
from kvstream.spark.jobs.folders import Folder

OWN = "_kvstream"
STAGED = "staged-"
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Portion:
    """What a run has archived of one stream."""

    entries: int
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class Run:
    """One completed run."""

    number: int
    source: str
    streams: dict[str, Portion] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    """Relative to the archive."""

    @property
    def entries(self) -> int:
        return sum(portion.entries for portion in self.streams.values())

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def parse(cls, text: str) -> "Run":
        told = json.loads(text)
        streams = {name: Portion(**portion) for name, portion in told["streams"].items()}
        return cls(told["number"], told["source"], streams, tuple(told["files"]))


class Archive:
    """A folder of archived streams."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def runs(self) -> list[Run]:
        """Return the completed runs, in their order."""
        names = [name for name in self.folder.names(OWN) if name.endswith(".json")]
        return [Run.parse(self.folder.read(f"{OWN}/{name}")) for name in names]

    def last_ids(self) -> dict[str, StreamID]:
        """Return the last archived ID of each stream."""
        found: dict[str, StreamID] = {}
        for run in self.runs():
            for name, portion in run.streams.items():
                found[name] = max(found.get(name, MIN_ID), StreamID.parse(portion.last))
        return found

    def files(self) -> list[str]:
        """Return the URIs of all archived files."""
        return [self.folder.at(name) for run in self.runs() for name in run.files]

    def sweep(self) -> None:
        """Remove what a run that was not completed has left."""
        counted = {file for run in self.runs() for file in run.files}
        for name in self.folder.names(OWN):
            if name.startswith(STAGED) or name.endswith(".partial"):
                self.folder.remove(f"{OWN}/{name}")
        for file in self.folder.files(""):
            if file not in counted and _is_ours(file):
                self.folder.remove(file)

    def take(self, staged: str, number: int) -> tuple[str, ...]:
        """Move the files of a run into place; return their names."""
        moved = []
        for file in self.folder.files(f"{OWN}/{staged}"):
            place, _, name = file.rpartition("/")
            target = f"{place}/{number:0{_DIGITS}}-{name}"
            self.folder.move(f"{OWN}/{staged}/{file}", target)
            moved.append(target)
        return tuple(moved)

    def complete(self, run: Run) -> None:
        """Have a run count."""
        self.folder.write(f"{OWN}/{run.number:0{_DIGITS}}.json", run.text())


def _is_ours(file: str) -> bool:
    parts = file.split("/")
    return (
        len(parts) == 3
        and parts[0].startswith("stream=")
        and parts[1].startswith("day=")
        and parts[2][:_DIGITS].isdigit()
    )
