"""The way to servers over redis-py: connections, errors as kvstream's, replies as its records.

The command line, migration and Spark go this way; it knows none of them.
"""
