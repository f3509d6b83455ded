"""Moving topics, and the groups that read them, from one log to another: a folder, a Kafka cluster.

    mover.py       the steps, in their order
    selection.py   what is moved
    copying.py     records, in transactions with what the journal says of them
    journal.py     what was done, kept in the target
    runs.py        which offset became which
    digest.py      a checksum of records in their order
    verifying.py   the copy is what was read
    settings.py    a topic's settings, while it is copied and afterwards
    forms.py       in which form values are kept there
    groups.py      committed positions, translated
    reading.py     up to an end, in rounds
    report.py      what is said of it

It knows both logs as a `changelog.broker.Broker` only.
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
