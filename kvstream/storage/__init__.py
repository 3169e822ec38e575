"""Storage: RocksDB behind one narrow door."""
