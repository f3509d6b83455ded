"""Options of `format("strandline")`, parsed and checked in one place.

They have the names of Spark's Kafka source wherever the meaning is the same:

    path                   folder or URL of the log: the argument of `load(path)`
    subscribe              topics, separated by commas
    startingOffsets        "earliest", "latest" (streams only), or JSON such as
                           {"flights": {"0": 23, "1": -2}}, with -2 for earliest and -1 for latest;
                           default earliest, for streams latest
    endingOffsets          the same for the end of a batch read; default latest
    startingTimestamp      milliseconds since the epoch, or ISO 8601: begin at the first record of each
                           partition that is at least as late; before startingOffsets
    startingOffsetsByTimestamp   the same for each partition: {"flights": {"0": 1700000000000}}
    startingOffsetsByTimestampStrategy   "error" (default) or "latest": what to do in a partition
                           without such a record
    endingTimestamp, endingOffsetsByTimestamp   the same for the end (exclusive) of a batch read;
                           a partition without such a record is read to its end
    failOnDataLoss         "true" (default): fail if records that should be read are gone
    includeHeaders         "true": add a column of headers; default "false"
    maxOffsetsPerTrigger   maximum number of offsets of a micro-batch, over all partitions

    maxBytesPerTrigger     the same in bytes of the log
    minPartitions          minimum number of Spark tasks that read the records
    maxBytesPerTask        approximate maximum bytes that a task reads; larger partitions are divided
                           among tasks, smaller ones read together

These options, and `maxBytesPerTask`, are Strandline's own:

    includeMetadata        "true": add key, topic, partition, offset, timestamp to a typed topic
    store                  "app/store", or a compacted topic: read its latest state
    partition              partition of the store to read; default all partitions
    asOfOffsets            JSON such as {"app-store-changelog": {"0": 23}}: read the store as it was at
                           these offsets (exclusive); -1 for latest
    asOfTimestamp          milliseconds since the epoch, or ISO 8601: read it as it was at that time
    changes                "true": follow the changes of `store` in a stream; of the other options those
                           of a stream's start and size may be given too
    pinTimeoutMs           milliseconds that planned records are kept unchanged without being read;
                           0: not at all
    pushFilters            "true": evaluate filters of a batch read in the source
    decode                 "false": keys and values of a store as the bytes they are stored in
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from strandline.changelog.decoding import json_decoder
from strandline.changelog.errors import UNREADABLE, InvalidConfig
from strandline.changelog.secret import masked
from strandline.framework.spark.option_values import (
    checked_ms,
    count_of,
    flag_of,
    known_name,
    log_path,
    time_of,
)

EARLIEST = -2
LATEST = -1
STREAM_PIN_MS = 24 * 60 * 60 * 1000
"""Default of `pinTimeoutMs` for streams: a query may be down for this long within a batch."""
BATCH_PIN_MS = 60 * 60 * 1000
"""Default of `pinTimeoutMs` for batch reads. Their end is not known, so unused pins expire."""

TASK_BYTES = 128 << 20
"""Default of `maxBytesPerTask`: that of Spark's files (`spark.sql.files.maxPartitionBytes`)."""

Numbers = Mapping[str, Mapping[int, int]]
"""Offsets or times by topic and partition."""


class AtTime(NamedTuple):
    """Start or end of a read by the time of records."""

    ms: int | Numbers
    """Milliseconds since the epoch: the same everywhere, or by topic and partition."""
    option: str
    """Name of the option that gave the time."""
    or_latest: bool = True
    """True: use the end of a partition whose records are all older. False: that is an error."""


StartOrEnd = Literal["earliest", "latest"] | Numbers | AtTime
"""Start or end of a read: the same everywhere, or an offset by topic and partition, or a time."""

KNOWN = (
    "path",
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "includeHeaders",
    "includeMetadata",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxBytesPerTask",
    "store",
    "partition",
    "asOfOffsets",
    "asOfTimestamp",
    "changes",
    "decode",
    "pinTimeoutMs",
    "pushFilters",
)
"""Names of all options."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of one use of the source."""

    path: str = field(repr=False)
    """Absolute path (because workers run in other folders), or URL. A URL may contain secrets."""
    topics: tuple[str, ...] = ()
    store: str | None = None
    starting: StartOrEnd | None = None
    """None is the default of a batch or of a stream."""
    ending: StartOrEnd | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    include_metadata: bool = False
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_tasks: int = 1
    max_task_bytes: int = TASK_BYTES
    pin_timeout_ms: int | None = None
    """None is the default of a batch or of a stream."""
    partition: int | None = None
    """The only partition of `store` to read."""
    changes: bool = False
    """True if the changes of `store` are read as a stream, not its state."""
    as_of: StartOrEnd | None = None
    """End of the records that make up the table of `store`; None is the latest state."""
    push_filters: bool = False
    decode: bool = False
    """True if `store` is an app's and its keys and values are decoded."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Return the options given to Spark, whose names ignore case. Raise InvalidConfig."""
        given = {
            known_name(name, KNOWN): text
            for name, text in options.items()
            if not name.startswith("__")
        }
        parsed = cls(
            path=log_path(given.get("path"), ".load('path/of/the/log')"),
            topics=_topics(given.get("subscribe", "")),
            store=given.get("store"),
            starting=_at_time("starting", given) or _offsets("startingOffsets", given),
            ending=_at_time("ending", given) or _offsets("endingOffsets", given),
            fail_on_data_loss=flag_of("failOnDataLoss", given, default=True),
            include_headers=flag_of("includeHeaders", given, default=False),
            include_metadata=flag_of("includeMetadata", given, default=False),
            max_offsets=count_of("maxOffsetsPerTrigger", given),
            max_bytes=count_of("maxBytesPerTrigger", given),
            min_tasks=count_of("minPartitions", given) or 1,
            max_task_bytes=count_of("maxBytesPerTask", given) or TASK_BYTES,
            pin_timeout_ms=count_of("pinTimeoutMs", given, least=0),
            partition=count_of("partition", given, least=0),
            as_of=_as_of(given),
            changes=flag_of("changes", given, default=False),
            push_filters=flag_of("pushFilters", given, default=False),
            decode="/" in given.get("store", "") and flag_of("decode", given, default=True),
        )
        parsed._check(given)
        return parsed

    def start_of_batch(self) -> StartOrEnd:
        """Return the start of a batch read. Raise InvalidConfig for "latest"."""
        if _mentions(self.starting, "latest", LATEST):
            raise InvalidConfig(
                "startingOffsets of a batch read cannot be latest (-1): nothing could follow; "
                "use earliest (-2) or offsets"
            )
        return self.starting or "earliest"

    def end_of_batch(self) -> StartOrEnd:
        """Return the end of a batch read. Raise InvalidConfig for "earliest"."""
        if _mentions(self.ending, "earliest", EARLIEST):
            raise InvalidConfig(
                "endingOffsets cannot be earliest (-2): nothing would be read; "
                "use latest (-1) or offsets"
            )
        return self.ending or "latest"

    def start_of_stream(self) -> StartOrEnd:
        """Return the start of a new streaming query. Raise InvalidConfig if an end is given."""
        if self.ending is not None:
            raise InvalidConfig(
                "endingOffsets and endingTimestamp are for batch reads; a stream has no end"
            )
        return self.starting or "latest"

    @property
    def batch_pin_ms(self) -> int:
        """Milliseconds that an unused pin of a batch read is kept; 0 for no pin."""
        return BATCH_PIN_MS if self.pin_timeout_ms is None else self.pin_timeout_ms

    @property
    def stream_pin_ms(self) -> int:
        """Milliseconds that an unused pin of a micro-batch is kept; 0 for no pin."""
        return STREAM_PIN_MS if self.pin_timeout_ms is None else self.pin_timeout_ms

    @property
    def table(self) -> str:
        """Topic of `store`: the changelog of an app's store, or the compacted topic itself.

        >>> SourceOptions("/log", store="flights/totals").table
        'flights-totals-changelog'
        """
        store = self.store or ""
        return f"{store.replace('/', '-', 1)}-changelog" if "/" in store else store

    @property
    def is_app_store(self) -> bool:
        """True if `store` is "app/store", not a topic."""
        return "/" in (self.store or "")

    def _check(self, given: Mapping[str, str]) -> None:
        if bool(self.topics) == bool(self.store):
            said = {name: masked(text) for name, text in given.items()}
            raise InvalidConfig(
                "say what to read: .option('subscribe', 'topic') for records, or "
                f".option('store', 'app/store') for a latest state; got {said}"
            )
        records_only = _RECORDS_ONLY - _CHANGES_TOO if self.changes else _RECORDS_ONLY
        elsewhere, other = (records_only, "subscribe") if self.store else (_STORES_ONLY, "store")
        if misplaced := [name for name in given if name in elsewhere]:
            raise InvalidConfig(f"{', '.join(misplaced)} can be used with {other} only")


_STREAM_START = {
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
}
_CHANGES_TOO = {*_STREAM_START, "maxOffsetsPerTrigger", "maxBytesPerTrigger"}
_RECORDS_ONLY = {
    *_CHANGES_TOO,
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    *("includeHeaders", "includeMetadata", "minPartitions", "pushFilters"),
}
_STORES_ONLY = {"decode", "partition", "asOfOffsets", "asOfTimestamp", "changes"}


def _topics(text: str) -> tuple[str, ...]:
    return tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))


def _offsets(name: str, given: Mapping[str, str]) -> StartOrEnd | None:
    if name not in given:
        return None
    text = given[name].strip()
    if text.lower() == "earliest":
        return "earliest"
    if text.lower() == "latest":
        return "latest"
    offsets = _numbers(text, f'{name} must be "earliest", "latest" or JSON like')
    if any(offset < EARLIEST for each in offsets.values() for offset in each.values()):
        raise InvalidConfig(f"{name}: an offset is 0 or more, -1 (latest) or -2 (earliest): {text}")
    return offsets


def _at_time(which: Literal["starting", "ending"], given: Mapping[str, str]) -> AtTime | None:
    """Return the time of a start or end. As in Spark, one time for all is preferred."""
    or_latest = which == "ending" or _strategy(given) == "latest"
    single, each = f"{which}Timestamp", f"{which}OffsetsByTimestamp"
    if (ms := time_of(single, given)) is not None:
        return AtTime(ms, single, or_latest)
    if each not in given:
        return None
    times = _numbers(given[each].strip(), f"{each} must be JSON like")
    for ms in {ms for partitions in times.values() for ms in partitions.values()}:
        if ms < 0:
            raise InvalidConfig(f"{each}: a time is 0 or more milliseconds, got {given[each]!r}")
        checked_ms(each, ms)
    return AtTime(times, each, or_latest)


def _as_of(given: Mapping[str, str]) -> StartOrEnd | None:
    """Return the end of a table's records: those up to a time are before the first later one."""
    if "asOfOffsets" in given and "asOfTimestamp" in given:
        raise InvalidConfig("give asOfOffsets or asOfTimestamp, not both")
    if (ms := time_of("asOfTimestamp", given, after=True)) is not None:
        return AtTime(ms, "asOfTimestamp")
    offsets = _offsets("asOfOffsets", given)
    if _mentions(offsets, "earliest", EARLIEST):
        raise InvalidConfig("asOfOffsets cannot be earliest (-2): the table would be empty")
    return offsets


def _strategy(given: Mapping[str, str]) -> str:
    name = "startingOffsetsByTimestampStrategy"
    text = given.get(name, "error").strip().lower()
    if text not in ("error", "latest"):
        raise InvalidConfig(f"{name} must be 'error' or 'latest', got {given[name]!r}")
    return text


def _numbers(text: str, wanted: str) -> Numbers:
    """Return JSON of numbers by topic and partition. Raise InvalidConfig, beginning with `wanted`."""
    try:
        return _decode_offsets(text)
    except UNREADABLE as error:
        raise InvalidConfig(f'{wanted} {{"topic": {{"0": 23}}}}, got {text!r} ({error})') from error


def _mentions(where: StartOrEnd | None, word: str, number: int) -> bool:
    if isinstance(where, Mapping):
        return any(number in each.values() for each in where.values())
    return where == word


_decode_offsets = json_decoder(dict[str, dict[int, int]]).decode
