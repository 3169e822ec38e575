"""The same commands on a server: kvstream's, or Redis's from 7.0 on, over redis-py.

It speaks the commands that both know, and gives back the library's records. What a server lacks it
says itself. Nothing here imports redis-py before a server is named: it comes with
``kvstream[server]``.
"""
