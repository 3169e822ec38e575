"""The engine: one lock, one commit, the readers that wait, and the threads beside them."""
