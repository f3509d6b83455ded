"""Checks of a log folder that no process has open; docs/reliability.md lists what is verified.

findings.py      the report: findings and their severity
folder.py        the whole folder: meta, catalog, folders; calls the other modules
partition.py     one partition: manifest, segments, frames
walking.py       one segment: readable frames, gaps between them, the torn tail
producers.py     sequences, epochs and transactions within a partition
side_files.py    indexes, aborted indexes and producer snapshots against the frames
rebuilding.py    lost manifests and catalogs, rebuilt from the other files
transactions.py  the transaction log, and the partitions of a transaction against one another
groups.py        committed offsets against the ends of partitions
scanned.py       results of a scan, for further checks and for repair
"""
