"""Benchmarks of kvstream beside redis-server, in one run: ``make bench``. Not installed.

Rows compare both sides: ``library``, ``server``, ``migrate``, ``spark``. Limits are bounds for
kvstream alone: ``library_limits``, ``latency``, ``bulk_load``, ``server_limits``, ``spark_limits``.
``workload`` has the entries and sizes, ``processes`` starts the servers, ``results`` and ``report``
hold and show the figures.
"""
