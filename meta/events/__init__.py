"""Events: changes of keys, which clients subscribe to, and what happens in queues, as counts."""
