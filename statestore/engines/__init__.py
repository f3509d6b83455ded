"""The engines that hold a store's committed bytes: RocksDB on disk, and memory."""
