"""Replicas: how a store sends its log to others, and how one takes the log of another over.

``protocol`` has the bytes of the link, ``sending`` what a primary sends, ``applying`` what becomes
of records, ``copying`` the copy of a whole store, ``follower`` the thread of a replica. Roles,
commands and the sockets of a primary are the server's.
"""
