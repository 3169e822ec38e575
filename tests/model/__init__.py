"""A small model of Redis Streams 8.10 in plain dicts and lists, to hold kvstream against.

The rules are in ``stream``, the sizes that decide where nodes end in ``listpack``; the other
modules read commands and shape replies, ``commands`` is the door. It knows nothing of kvstream.
Where Redis 8.10 leaves a choice, a comment begins with "Decided".
"""
