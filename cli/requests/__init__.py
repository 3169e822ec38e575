"""``cmd`` and ``monitor``: requests as Redis has them, one to send and those of all clients."""
