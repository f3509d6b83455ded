"""Options of the RocksDB databases of a process, which share one cache."""

from __future__ import annotations

import threading

import rocksdict

from strandline.changelog.local_file import allow_many_files

MAX_OPEN_FILES = 256
"""Maximum number of files that one store keeps open."""

MIN_OPEN_FILES = 20
"""Minimum that RocksDB accepts for open files; it uses ten of them for other files than tables."""

FILTER_PARTITION_BYTES = 64 << 10
"""Size of a partition of a table's index and of its Bloom filter."""

DELETION_WINDOW = 10_000
"""Number of consecutive entries of which half are deletions, for a file to be compacted soon.

A scan passes the deletions in its range, at about 0.2 µs each, until they are compacted away.
"""

EXPECTED_STORES = 256
"""Number of store partitions that a process should be able to have open."""


def configure_memory(*, block_cache_bytes: int, memtable_bytes: int) -> None:
    """Set the sizes in bytes shared by all RocksDB stores of this process.

    The defaults are 128 MiB for the block cache and 64 MiB for memtables.
    """
    SharedMemory.block_cache_bytes = block_cache_bytes
    SharedMemory.memtable_bytes = memtable_bytes
    shared = SharedMemory.instance
    if shared is not None:
        shared.cache.set_capacity(block_cache_bytes)
        shared.memtables.set_buffer_size(memtable_bytes)


class SharedMemory:
    """Block cache and memtable budget shared by all engines of the process."""

    block_cache_bytes = 128 << 20
    memtable_bytes = 64 << 20
    instance: SharedMemory | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.cache = rocksdict.Cache(self.block_cache_bytes)
        self.memtables = rocksdict.WriteBufferManager(self.memtable_bytes, allow_stall=False)

    @classmethod
    def get(cls) -> SharedMemory:
        with cls._lock:
            if cls.instance is None:
                cls.instance = cls()
            return cls.instance


def open_files(allowed: int) -> int:
    """Return how many files one store may keep open if the process may open `allowed` files.

    >>> open_files(65_536), open_files(16_384), open_files(1_024)
    (256, 64, 20)
    """
    return max(MIN_OPEN_FILES, min(allowed // EXPECTED_STORES, MAX_OPEN_FILES))


def database_options() -> rocksdict.Options:
    shared = SharedMemory.get()
    tables = rocksdict.BlockBasedOptions()
    tables.set_block_cache(shared.cache)
    tables.set_bloom_filter(10, block_based=False)
    tables.set_cache_index_and_filter_blocks(True)
    tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
    # The filter of a large file outgrows a shard of the block cache, and would then be read again
    # at each look-up. Its partitions fit, and a look-up reads one.
    tables.set_partition_filters(True)
    tables.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
    tables.set_metadata_block_size(FILTER_PARTITION_BYTES)
    tables.set_pin_top_level_index_and_filter(True)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(create_if_missing=True)
    options.set_block_based_table_factory(tables)
    options.set_write_buffer_manager(shared.memtables)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_max_open_files(open_files(allow_many_files()))
    options.add_compact_on_deletion_collector_factory(DELETION_WINDOW, DELETION_WINDOW // 2, 0.5)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_stats_dump_period_sec(0)
    return options


def write_options() -> rocksdict.WriteOptions:
    options = rocksdict.WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign, assignment]
    return options


def ingest_options() -> rocksdict.IngestExternalFileOptions:
    options = rocksdict.IngestExternalFileOptions()
    options.set_move_files(True)
    return options
