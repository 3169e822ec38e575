"""``migrate`` and ``diff``: move streams from place to place, and compare two places."""
