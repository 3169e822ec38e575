"""The least server: the benchmark's commands with as little work as Python needs for them.

One loop over epoll, hiredis's parser, a dict of handlers, one write batch a turn, replies after it.
It writes the rows that kvstream must write too: an entry, its stream's last ID, its group's
position, and each pending entry. Everything else is missing: options, types, most errors,
statistics, limits, rights, expiry, blocked clients, recovery. Words are expected at the places
where the benchmark has them.

So its processor time is a bound for a server in Python, and the unit in which the processor time of
``kvstream serve`` is given, on any machine.
"""
