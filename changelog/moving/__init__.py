"""Move topics and committed offsets of groups between logs: folders and Kafka clusters.

    mover.py       the steps of a move, in order
    selection.py   which topics and groups are moved
    copying.py     copies records, in transactions that also write the journal
    journal.py     the progress of a move, stored in the target
    runs.py        the mapping of source offsets to target offsets
    digest.py      a checksum of records in order
    verifying.py   compares the copy with what was read
    settings.py    the settings of a topic during and after copying
    forms.py       the format of values in the target
    groups.py      committed offsets, translated to the target
    reading.py     reads partitions up to an end offset
    report.py      the result of a move
    unfinished.py  refuses topics whose move is not finished

Both logs are accessed through `changelog.broker.Broker` only.
"""

from __future__ import annotations

from strandline.changelog.moving.mover import move, verify_only
from strandline.changelog.moving.report import MovedPartition, MovedTopic, MoveReport, Progress
from strandline.changelog.moving.selection import (
    Conversion,
    Conversions,
    Metadata,
    MovedLog,
    Selection,
)

__all__ = [
    "Conversion",
    "Conversions",
    "Metadata",
    "MovedPartition",
    "MovedTopic",
    "MovedLog",
    "Progress",
    "MoveReport",
    "Selection",
    "move",
    "verify_only",
]
