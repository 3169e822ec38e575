"""``import``: append rows of JSON Lines or CSV, and resume an import that was killed."""
