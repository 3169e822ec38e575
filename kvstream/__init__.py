"""Redis Streams on RocksDB, inside your own process."""
