"""The replication of a server: its role, the links of its replicas, and who waits for them.

``states`` has the states and what each allows, ``lease`` when a primary has enough replicas,
``role`` the changes of role, ``replicas`` the links of a primary, ``waits`` and ``acks`` who waits
for replicas. ``replication`` puts them together for one server.
"""
