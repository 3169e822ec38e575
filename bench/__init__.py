"""kvstream beside redis-server, in one run: ``make bench``.

Each module owns one part: ``workload`` the entries and sizes, ``peer`` the redis-server,
``contests`` what both sides do, ``claims`` what kvstream alone has promised, ``results`` the
figures, ``report`` how they are shown. None of them is installed.
"""
