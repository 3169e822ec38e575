"""``import``: entries from JSON Lines and CSV, in commits that a killed import resumes from."""
