"""Migration of streams and strings between stores, servers, RDB files and append-only files.

``plan`` shows what would be lost, ``run`` copies the keys, ``verify`` compares two places. A place
is the directory of a store, an RDB file, an append-only file, or the URL of a server::

    from kvstream import migration

    migration.run("redis://127.0.0.1:6379", "data")
    assert migration.verify("redis://127.0.0.1:6379", "data").equal

``follow`` keeps a target in step with a live server, and ``cut_over`` switches over to the target.
The command ``kvstream migrate`` does the same.
"""

from kvstream.migration.api import cut_over, follow, open_source, open_target, plan, run, verify
from kvstream.migration.copy import Carried, LossRefused, Outcome
from kvstream.migration.differences import Difference
from kvstream.migration.items import Item, Selection, Source, Target
from kvstream.migration.places import Place, PlaceKind, parse_place
from kvstream.migration.replication.cutover import CutOver, Pair
from kvstream.migration.runner import Planned, Report
from kvstream.migration.verification import Verification
from kvstream.rdb.versions import Loss

__all__ = [
    "Carried",
    "CutOver",
    "Difference",
    "Item",
    "Loss",
    "LossRefused",
    "Outcome",
    "Pair",
    "Place",
    "PlaceKind",
    "Planned",
    "Report",
    "Selection",
    "Source",
    "Target",
    "Verification",
    "cut_over",
    "follow",
    "open_source",
    "open_target",
    "parse_place",
    "plan",
    "run",
    "verify",
]


def __dir__() -> list[str]:
    return __all__
