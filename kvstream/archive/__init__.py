"""The archive: the log and the tables of a store in an object store, and a store made of them.

It knows files and commits, not what the rows mean. ``objects`` is the only module that reaches an
object store.
"""
