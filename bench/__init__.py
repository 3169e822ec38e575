"""Benchmarks of kvstream beside redis-server, in one run: ``make bench``. Not installed.

Rows compare both sides: ``library``, ``server``, ``commands``, ``queue_cycle``, ``rivals``,
``migrate``, ``spark``. Limits are bounds for kvstream: ``limits``, ``latency``, ``open_loop``,
``wakeups``. ``workload`` has the entries and sizes, ``processes`` starts the servers, ``load``
sends what redis-benchmark cannot, ``results`` and ``report`` hold and show the figures, ``targets``
has those of processor time over the ``least`` server. ``machine`` asks the machine for more than
time. ``calls`` counts calls of Python functions and allocations, without a peer: ``python -m bench
calls``.
"""
