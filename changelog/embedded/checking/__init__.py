"""Checking a log folder that nobody has open: docs/reliability.md says what is verified.

findings.py      what a check says
folder.py        the whole folder: meta, catalog, folders; calls the others
partition.py     one partition: manifest, segments, frames
walking.py       one segment: frames that can be read, gaps, debris
producers.py     sequences, epochs and transactions within a partition
side_files.py    indexes, aborted transactions and producer snapshots against the frames
rebuilding.py    manifests and catalog made up from the rest, where they are lost
transactions.py  the transaction log, and what ties partitions together
groups.py        committed offsets
scanned.py       what a scan leaves for further checks and for repair
"""
