"""One consumer as its group's runs show it."""

from dataclasses import dataclass, field

from kvstream.meta.records import ConsumerMeta
from kvstream.meta.trees import Tree, as_is
from kvstream.operations.checks.survey import Survey
from kvstream.storage.batch import Family


@dataclass(slots=True)
class Owner:
    """A consumer's record, where it can be read, and the count of its runs."""

    place: str
    name: bytes
    row: bytes
    consumer: ConsumerMeta | None = None
    record: bytes | None = None
    pending: int = 0
    """Of an indexed group; in any other nothing is counted."""
    indexed: int = 0
    """Those of the runs that the consumer's own tree has."""
    unindexed: list[bytes] = field(default_factory=list)
    """Where there is no record: the anchors of the runs."""

    def make(self, survey: Survey) -> None:
        """Write a record and a tree for a consumer that has none; its times begin now."""
        tree = Tree(survey.allocate(), as_is)
        consumer = ConsumerMeta(self.name, self.row, tree, survey.now_ms)
        consumer.pending = self.pending
        survey.findings.put(Family.TREES, self.row, consumer.encode())
        for anchor in self.unindexed:
            survey.findings.put(Family.TREES, tree.prefix + anchor, b"")
