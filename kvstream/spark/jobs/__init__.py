"""Jobs of Spark on whole streams: archive and restore, import and export, report, verify.

Each is a function of a session and of places, says what it does as it goes, may be run again after
any failure, and returns counts that add up. ``kvstream spark JOB`` runs them.
"""
