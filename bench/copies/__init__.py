"""What the copies of a store cost: its archive and its replicas."""
