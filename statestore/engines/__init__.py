"""The engines that store a partition's committed bytes: RocksDB on disk, and memory."""
