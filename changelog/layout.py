"""The name of every file in a log folder. No other module builds or parses a path.

strandline.meta                 identity of the folder: its format and log id
lock                            flock of the owner; its pid and start time
owner.json  owner-<hex>.sock    address of the owner (changelog/flight)
owner.log                       log messages of background owners
topics.meta                     the catalog: topics, their configs and schemas
config.meta                     the settings of the log as a whole; missing while there are none
tokens.meta  tokens.lock        verifiers and rights of tokens (changelog/flight); lock of its
writers
clean                           record of an orderly close; removed at opening
topics/<topic id>/topic.meta    copy of the topic's entry in the catalog, for repair
topics/<topic id>/<partition>/
    manifest.meta               the partition's segments, log start and leader epochs
    <base offset>-<generation>.log        frames
    <base offset>-<generation>.index      sparse offset and time index; can be rebuilt
    <base offset>-<generation>.aborted    aborted transactions that end in the segment
    <offset>.producers                    producer state as of an offset; the last two are kept
    keys.tmp                              keys that do not fit the cleaner's memory, during a pass
pins/<holder>/<since>-<until>/            a range that can be read again unchanged (changelog/pins)
    pin.meta                              the pinned range, and its timeout
    <topic id>-<partition>-<segment>.log  hard link of a segment
snapshots/<name>/                         the log at one moment, while it is backed up
(changelog/snapshots)
    snapshot.meta                         the files of the log, with their sizes
    <topic id>-<partition>-<segment>.log  hard link of a segment
state/<app>/<store>/<partition>/          the store engines' folders, and a lock beside each
(statestore)
queries/<id>.sock               address of a worker that answers queries (framework/querying)
repaired/<time>/                          files that `strandline repair` changed or removed, as they
were
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
    """Base name of a segment's files: its base offset, and a number that is never used again."""

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
    """Return the folder of a partition."""
    return f"{TOPICS}/{topic_id}/{partition}"


def topic_folder(topic_id: str) -> str:
    """Return the folder of a topic."""
    return f"{TOPICS}/{topic_id}"


def is_topic_id(name: str) -> bool:
    """Return True if a name in the folder of topics is a topic id. Other names are left alone."""
    return re.fullmatch(TOPIC_ID, name) is not None


def topic_copy(topic_id: str) -> str:
    """Return the path of the copy of a topic's entry, which lies in the topic's folder."""
    return f"{TOPICS}/{topic_id}/{TOPIC}"


def holder_folder(holder: str) -> str:
    """Return the folder of all pins of a holder."""
    return f"{PINS}/{holder}"


def pin_folder(name: PinName) -> str:
    """Return the folder of a pin."""
    return f"{PINS}/{name.holder}/{name.since}-{name.until}"


def pin_file(name: PinName) -> str:
    """Return the path of a pin's document."""
    return f"{pin_folder(name)}/{PIN}"


def pin_of(holder: str, folder: str) -> PinName | None:
    """Return the pin of a folder in its holder's folder; None for any other folder.

    >>> pin_of("a1", "b2-c3")
    PinName(holder='a1', since='b2', until='c3')
    """
    match = re.fullmatch(
        f"({NAME_PATTERN})/({NAME_PATTERN})-({NAME_PATTERN})", f"{holder}/{folder}"
    )
    return PinName(*match.groups()) if match else None


def pin_link(topic_id: str, partition: int, segment: SegmentName) -> str:
    """Return the file name of a pin's link to a segment."""
    return f"{topic_id}-{partition}-{segment.log_file}"


def snapshot_folder(name: str) -> str:
    """Return the folder of a snapshot."""
    return f"{SNAPSHOTS}/{name}"


def snapshot_file(name: str) -> str:
    """Return the path of a snapshot's document."""
    return f"{SNAPSHOTS}/{name}/{SNAPSHOT}"


def snapshot_link(path: str) -> str:
    """Return the file name of a snapshot's link to a file of a partition.

    >>> snapshot_link("topics/ab/3/00000000000000000007-00000002.log")
    'ab-3-00000000000000000007-00000002.log'
    """
    return "-".join(path.split("/")[1:])


PIN_LINK = r"^[0-9a-f]{32}-\d+-\d{20}-\d{8}\.log$"
"""Pattern of the names of pins' links."""


@lru_cache(1 << 12)
def place_of(path: str) -> int:
    """Return the CRC-32C of the partition's name, for a segment file or a pin's link to one.

    The name is that of the partition's folder, "<topic id>/<partition>".

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
    """Return the file name of the producer state as of `offset`.

    >>> producer_snapshot(42)
    '00000000000000000042.producers'
    """
    return f"{offset:020d}.producers"


def snapshot_offset(name: str) -> int | None:
    """Return the offset in a producer snapshot's name; None for any other file."""
    match = re.fullmatch(r"(\d{20})\.producers", name)
    return int(match[1]) if match else None


def segment_of(name: str) -> SegmentName | None:
    """Return the segment that a file belongs to; None for any other file.

    >>> segment_of("00000000000000000007-00000002.log")
    SegmentName(base_offset=7, generation=2)
    """
    match = re.fullmatch(r"(\d{20})-(\d{8})\.(?:log|index|aborted)", name)
    return SegmentName(int(match[1]), int(match[2])) if match else None
