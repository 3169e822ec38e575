"""Access to servers over redis-py: connections, errors as kvstream's, replies as its records."""
