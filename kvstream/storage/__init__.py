"""Storage: RocksDB behind a small interface."""
