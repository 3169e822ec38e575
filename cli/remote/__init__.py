"""A server's database with the calls of the library: kvstream's server, or Redis from 7.0 on.

Every call is a command that both servers know, and returns the library's records. A server refuses
what it does not know. redis-py is imported when a connection is made: it comes with
``kvstream[server]``.
"""
