"""Spark jobs on whole streams: archive and restore, import and export, migrate, report, verify.

Each job is a function of a session and of places. It logs its progress through ``say``, may be run
again after any failure, and returns counts that add up. ``kvstream spark JOB`` runs them.
"""

from kvstream.spark.jobs.archives import Archived, Restored, archive, asof, restore
from kvstream.spark.jobs.files import Exported, Imported, export_files, import_files
from kvstream.spark.jobs.migration import Moved, Pair, migrate
from kvstream.spark.jobs.places import place
from kvstream.spark.jobs.reports import Report, page, report
from kvstream.spark.jobs.verification import Verified, verify

__all__ = [
    "Archived",
    "Exported",
    "Imported",
    "Moved",
    "Pair",
    "Report",
    "Restored",
    "Verified",
    "archive",
    "asof",
    "export_files",
    "import_files",
    "migrate",
    "page",
    "place",
    "report",
    "restore",
    "verify",
]


def __dir__() -> list[str]:
    return __all__
