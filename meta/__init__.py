"""Metadata: streams, nodes, groups, consumers and pending entries, as rows and as objects.

Everything here reads through a transaction and writes into its batch; nothing commits.
"""
