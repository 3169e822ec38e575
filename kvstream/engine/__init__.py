"""The engine: one lock, one commit, blocked readers, and the expiry thread."""
