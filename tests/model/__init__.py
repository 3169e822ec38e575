"""A small model of Redis Streams 8.10 in plain dicts and lists, which tests compare kvstream with.

The rules are in ``stream``, the sizes that decide where nodes end in ``listpack``; the other
modules read commands and make replies; ``commands`` runs them. It imports nothing of kvstream.
Where Redis 8.10 leaves a choice, a comment begins with "Decided".
"""
