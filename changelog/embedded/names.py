"""The name of every file in a log folder. No other module makes or takes apart a path.

strandline.meta                 what this folder is, its format and log id
lock                            flock of the owner; says its pid and start time
owner.json  owner-<hex>.sock    where the owner listens (changelog/flight)
owner.log                       what background owners have said
topics.meta                     the catalog: topics, their configs and schemas
config.meta                     the settings of the log as a whole; missing while there are none
tokens.meta  tokens.lock        verifiers and rights of tokens (changelog/flight); lock of its writers
clean                           how the log was closed, in order; removed at opening
topics/<topic id>/topic.meta    the topic's entry of the catalog once more, for repair
topics/<topic id>/<partition>/
    manifest.meta               the truth: segments, log start, leader epochs
    <base offset>-<generation>.log        frames
    <base offset>-<generation>.index      sparse offset and time index; can be rebuilt
    <base offset>-<generation>.aborted    aborted transactions that end in the segment
    <offset>.producers                    producer state as of an offset; the last two are kept
    keys.tmp                              what a pass of the cleaner has no memory for; gone with it
pins/<holder>/<since>-<until>/            a range that can be read again as it is now (changelog/pins)
    pin.meta                              what is pinned, and for how long
    <topic id>-<partition>-<segment>.log  hard link of a segment
snapshots/<name>/                         the log at one moment, while it is backed up (changelog/snapshots)
    snapshot.meta                         which files it has, and how large each was
    <topic id>-<partition>-<segment>.log  hard link of a segment
state/<app>/<store>/<partition>/          the store engines' folders, and a lock beside each (statestore)
queries/<id>.sock               where a worker answers queries (framework/querying)
repaired/<time>/                          what `strandline repair` changed or removed, as it was
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import crc32c

from strandline.changelog.pins import NAME_PATTERN, PinName

FOLDER_META = "strandline.meta"
LOCK = "lock"
CATALOG = "topics.meta"
LOG_CONFIG = "config.meta"
TOKENS = "tokens.meta"
TOKENS_LOCK = "tokens.lock"
CLEAN = "clean"
TOPICS = "topics"
TOPIC = "topic.meta"
STATE = "state"
REPAIRED = "repaired"
QUERIES = "queries"
PINS = "pins"
PIN = "pin.meta"
SNAPSHOTS = "snapshots"
SNAPSHOT = "snapshot.meta"
MANIFEST = "manifest.meta"
KEYS = "keys.tmp"

TOPIC_ID = "[0-9a-f]{32}"

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
SYSTEM_TOPICS = (CONSUMER_OFFSETS, TRANSACTION_STATE)


class SegmentName(NamedTuple):
    """What a segment's files are called: its base offset, and a number never used again."""

    base_offset: int
    generation: int

    @property
    def stem(self) -> str:
        return f"{self.base_offset:020d}-{self.generation:08d}"

    @property
    def log_file(self) -> str:
        return self.stem + ".log"

    @property
    def index_file(self) -> str:
        return self.stem + ".index"

    @property
    def aborted_file(self) -> str:
        return self.stem + ".aborted"

    @property
    def files(self) -> tuple[str, str, str]:
        return self.log_file, self.index_file, self.aborted_file


def partition_folder(topic_id: str, partition: int) -> str:
    """Folder of a partition."""
    return f"{TOPICS}/{topic_id}/{partition}"


def topic_folder(topic_id: str) -> str:
    """Folder of a topic."""
    return f"{TOPICS}/{topic_id}"


def is_topic_id(name: str) -> bool:
    """Whether a name in the folder of topics is one that this log gives; others are left alone."""
    return re.fullmatch(TOPIC_ID, name) is not None


def topic_copy(topic_id: str) -> str:
    """File of the topic's entry in its own folder."""
    return f"{TOPICS}/{topic_id}/{TOPIC}"


def holder_folder(holder: str) -> str:
    """Folder of all pins of a holder."""
    return f"{PINS}/{holder}"


def pin_folder(name: PinName) -> str:
    """Folder of a pin."""
    return f"{PINS}/{name.holder}/{name.since}-{name.until}"


def pin_file(name: PinName) -> str:
    """File that says what a pin holds."""
    return f"{pin_folder(name)}/{PIN}"


def pin_of(holder: str, folder: str) -> PinName | None:
    """The pin whose folder that is, among its holder's; None for what is no pin.

    >>> pin_of("a1", "b2-c3")
    PinName(holder='a1', since='b2', until='c3')
    """
    match = re.fullmatch(
        f"({NAME_PATTERN})/({NAME_PATTERN})-({NAME_PATTERN})", f"{holder}/{folder}"
    )
    return PinName(*match.groups()) if match else None


def pin_link(topic_id: str, partition: int, segment: SegmentName) -> str:
    """What a pin's link of a segment is called."""
    return f"{topic_id}-{partition}-{segment.log_file}"


def snapshot_folder(name: str) -> str:
    """Folder of a snapshot."""
    return f"{SNAPSHOTS}/{name}"


def snapshot_file(name: str) -> str:
    """File that says what a snapshot holds."""
    return f"{SNAPSHOTS}/{name}/{SNAPSHOT}"


def snapshot_link(path: str) -> str:
    """What a snapshot's link of a partition's file is called.

    >>> snapshot_link("topics/ab/3/00000000000000000007-00000002.log")
    'ab-3-00000000000000000007-00000002.log'
    """
    return "-".join(path.split("/")[1:])


PIN_LINK = r"^[0-9a-f]{32}-\d+-\d{20}-\d{8}\.log$"


@lru_cache(1 << 12)
def place_of(path: str) -> int:
    """CRC-32C of the name of the partition that a segment file belongs to, or a pin's link of one.

    The name is that of its folder, "<topic id>/<partition>".

    >>> topic_id = "0123456789abcdef" * 2
    >>> segment = SegmentName(7, 2)
    >>> in_log = place_of(f"{partition_folder(topic_id, 3)}/{segment.log_file}")
    >>> in_log == place_of(f"pins/a/b-c/{pin_link(topic_id, 3, segment)}")
    True
    >>> in_log == place_of(f"{partition_folder(topic_id, 4)}/{segment.log_file}")
    False
    """
    parts = path.split("/")
    name = parts[-1].split("-")[:2] if re.match(PIN_LINK, parts[-1]) else parts[-3:-1]
    return crc32c.crc32c("/".join(name).encode())


def producer_snapshot(offset: int) -> str:
    """File of the producer state as of `offset`.

    >>> producer_snapshot(42)
    '00000000000000000042.producers'
    """
    return f"{offset:020d}.producers"


def snapshot_offset(name: str) -> int | None:
    """The offset in a producer snapshot's name; None for any other file."""
    match = re.fullmatch(r"(\d{20})\.producers", name)
    return int(match[1]) if match else None


def segment_of(name: str) -> SegmentName | None:
    """The segment that a file belongs to; None for any other file.

    >>> segment_of("00000000000000000007-00000002.log")
    SegmentName(base_offset=7, generation=2)
    """
    match = re.fullmatch(r"(\d{20})-(\d{8})\.(?:log|index|aborted)", name)
    return SegmentName(int(match[1]), int(match[2])) if match else None
