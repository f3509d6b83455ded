"""The options of `format("strandline")`, read and checked in one place.

They are those of Spark's Kafka source wherever they mean the same:

    path                   folder or URL of the log: what `load(path)` takes
    subscribe              topics, separated by commas
    startingOffsets        "earliest", "latest" (streams only), or JSON: {"flights": {"0": 23, "1": -2}},
                           -2 for earliest and -1 for latest; default earliest, for streams latest
    endingOffsets          the same for the end of a batch read; default latest
    failOnDataLoss         "true" (default): an error when records that should be read are gone
    includeHeaders         "true": a column of headers; default "false"
    maxOffsetsPerTrigger   how many offsets a micro-batch may cover, over all partitions

and five of our own:

    includeMetadata        "true": key, topic, partition, offset, timestamp beside a typed topic's columns
    store                  "app/store", or a compacted topic: its latest state instead of its records
    partition              of a store only what this partition has; default all partitions
    pinTimeoutMs           how long what was planned is kept as it was while nobody reads it; 0: not at all
    decode                 "false": a store's keys and values as the bytes they are stored in
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from strandline.changelog import location
from strandline.changelog.decoding import json_decoder
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.secret import masked

_log = logging.getLogger(__name__)

EARLIEST = -2
LATEST = -1
STREAM_PIN_MS = 24 * 60 * 60 * 1000
"""Default of `pinTimeoutMs` for streams: a query may be down for so long in the middle of a batch."""
BATCH_PIN_MS = 60 * 60 * 1000
"""The same for batch reads, which nobody ends: it goes by when they were last used."""

StartOrEnd = Literal["earliest", "latest"] | Mapping[str, Mapping[int, int]]
"""Where to begin or end: everywhere the same, or by topic and partition."""

KNOWN = (
    "path",
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "failOnDataLoss",
    "includeHeaders",
    "includeMetadata",
    "maxOffsetsPerTrigger",
    "store",
    "partition",
    "decode",
    "pinTimeoutMs",
)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What one use of the source asked for."""

    path: str = field(repr=False)
    """Absolute, or a URL: workers run in other folders. It may have secrets in it."""
    topics: tuple[str, ...] = ()
    store: str | None = None
    starting: StartOrEnd | None = None
    """None: the default of a batch or of a stream."""
    ending: StartOrEnd | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    include_metadata: bool = False
    max_offsets: int | None = None
    pin_timeout_ms: int | None = None
    """None: the default of a batch or of a stream."""
    partition: int | None = None
    """The only partition of `store` to read."""
    decode: bool = False
    """Whether `store` is an app's, and its keys and values are to be decoded."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """From Spark's options, whose names do not depend on case. Raises InvalidConfig."""
        given = {_known(name): text for name, text in options.items() if not name.startswith("__")}
        parsed = cls(
            path=_path(given.get("path")),
            topics=_topics(given.get("subscribe", "")),
            store=given.get("store"),
            starting=_offsets("startingOffsets", given),
            ending=_offsets("endingOffsets", given),
            fail_on_data_loss=_flag("failOnDataLoss", given, default=True),
            include_headers=_flag("includeHeaders", given, default=False),
            include_metadata=_flag("includeMetadata", given, default=False),
            max_offsets=_count("maxOffsetsPerTrigger", given),
            pin_timeout_ms=_count("pinTimeoutMs", given, least=0),
            partition=_count("partition", given, least=0),
            decode="/" in given.get("store", "") and _flag("decode", given, default=True),
        )
        parsed._check(given)
        return parsed

    def start_of_batch(self) -> StartOrEnd:
        """Where a batch read begins. Raises InvalidConfig for "latest"."""
        if _mentions(self.starting, "latest", LATEST):
            raise InvalidConfig(
                "startingOffsets of a batch read cannot be latest (-1): nothing could follow; "
                "use earliest (-2) or offsets"
            )
        return self.starting or "earliest"

    def end_of_batch(self) -> StartOrEnd:
        """Where a batch read ends. Raises InvalidConfig for "earliest"."""
        if _mentions(self.ending, "earliest", EARLIEST):
            raise InvalidConfig(
                "endingOffsets cannot be earliest (-2): nothing would be read; "
                "use latest (-1) or offsets"
            )
        return self.ending or "latest"

    def start_of_stream(self) -> StartOrEnd:
        """Where a new streaming query begins. Raises InvalidConfig for what a stream cannot have."""
        if self.ending is not None:
            raise InvalidConfig("endingOffsets is for batch reads; a stream has no end")
        return self.starting or "latest"

    @property
    def batch_pin_ms(self) -> int:
        """How long what a batch read has planned is pinned unused; 0: not at all."""
        return BATCH_PIN_MS if self.pin_timeout_ms is None else self.pin_timeout_ms

    @property
    def stream_pin_ms(self) -> int:
        """The same for a micro-batch."""
        return STREAM_PIN_MS if self.pin_timeout_ms is None else self.pin_timeout_ms

    @property
    def table(self) -> str:
        """The topic behind `store`: an app's store by its changelog, or the compacted topic named.

        >>> SourceOptions("/log", store="flights/totals").table
        'flights-totals-changelog'
        """
        store = self.store or ""
        return f"{store.replace('/', '-', 1)}-changelog" if "/" in store else store

    @property
    def is_app_store(self) -> bool:
        """Whether `store` is "app/store", not a topic."""
        return "/" in (self.store or "")

    def _check(self, given: Mapping[str, str]) -> None:
        if bool(self.topics) == bool(self.store):
            said = {name: masked(text) for name, text in given.items()}
            raise InvalidConfig(
                "say what to read: .option('subscribe', 'topic') for records, or "
                f".option('store', 'app/store') for a latest state; got {said}"
            )
        elsewhere, other = (_RECORDS_ONLY, "subscribe") if self.store else (_STORES_ONLY, "store")
        if misplaced := [name for name in elsewhere if name in given]:
            raise InvalidConfig(f"{', '.join(misplaced)} can be used with {other} only")


_RECORDS_ONLY = (
    "startingOffsets",
    "endingOffsets",
    "includeHeaders",
    "includeMetadata",
    "maxOffsetsPerTrigger",
)
_STORES_ONLY = ("decode", "partition")
_BY_LOWER_CASE = {name.lower(): name for name in KNOWN}


def _known(name: str) -> str:
    if (known := _BY_LOWER_CASE.get(name.lower())) is not None:
        return known
    near = difflib.get_close_matches(name.lower(), _BY_LOWER_CASE, n=1)
    hint = f"did you mean {_BY_LOWER_CASE[near[0]]!r}?" if near else f"there are {', '.join(KNOWN)}"
    raise InvalidConfig(f'format("strandline") has no option {name!r}; {hint}')


def _path(path: str | None) -> str:
    if not path:
        raise InvalidConfig("say where the log is: .load('path/of/the/log')")
    path = path.removeprefix("file:")
    location.check(path)
    if masked(path) != path:
        _log.warning(
            "the URL %s has secrets in it, and Spark shows options in its event log and its pages; put "
            "them into the environment of driver and executors (STRANDLINE_TOKEN, or %s), or into a file "
            "there (token-file=…)",
            *(masked(path), location.KAFKA_VARIABLE),
        )
    return path if location.is_url(path) else os.path.abspath(path)


def _topics(text: str) -> tuple[str, ...]:
    return tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))


def _flag(name: str, given: Mapping[str, str], *, default: bool) -> bool:
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidConfig(f"{name} must be 'true' or 'false', got {given[name]!r}")
    return text == "true"


def _count(name: str, given: Mapping[str, str], least: int = 1) -> int | None:
    if name not in given:
        return None
    text = given[name].strip()
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise InvalidConfig(f"{name} must be a whole number above {least - 1}, got {given[name]!r}")
    return int(text)


def _offsets(name: str, given: Mapping[str, str]) -> StartOrEnd | None:
    if name not in given:
        return None
    text = given[name].strip()
    if text.lower() == "earliest":
        return "earliest"
    if text.lower() == "latest":
        return "latest"
    try:
        offsets = _decode_offsets(text)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidConfig(
            f'{name} must be "earliest", "latest" or JSON like {{"topic": {{"0": 23}}}}, '
            f"got {text!r} ({error})"
        ) from error
    if any(offset < EARLIEST for each in offsets.values() for offset in each.values()):
        raise InvalidConfig(f"{name}: an offset is 0 or more, -1 (latest) or -2 (earliest): {text}")
    return offsets


def _mentions(where: StartOrEnd | None, word: str, number: int) -> bool:
    if isinstance(where, Mapping):
        return any(number in each.values() for each in where.values())
    return where == word


_decode_offsets = json_decoder(dict[str, dict[int, int]]).decode
