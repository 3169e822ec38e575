"""The commands KVSTREAM.* of queues."""
