"""Jobs of Spark on whole streams: archive and restore, import and export, report, verify.

Each is a function of a session and of places, says what it does as it goes, may be run again after
any failure, and returns counts that add up. ``kvstream spark JOB`` runs them.
"""

from kvstream.spark.jobs.archiving import Archived, Restored, archive, asof, restore
from kvstream.spark.jobs.exchanging import Exported, Imported, export_files, import_files
from kvstream.spark.jobs.migrating import Moved, Pair, migrate
from kvstream.spark.jobs.places import place
from kvstream.spark.jobs.reporting import Report, page, report
from kvstream.spark.jobs.verifying import Verified, verify

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
