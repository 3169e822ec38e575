"""The commands of connections, transactions and operation: handlers that know the client."""
