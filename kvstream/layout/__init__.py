"""The bytes of every row: pure functions, no I/O."""
