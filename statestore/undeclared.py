"""Check of stores that are older than recorded declarations against the app's declaration.

The oldest and the newest records of each partition are decoded. If one of them does not fit, the
whole partition is folded and every current value is decoded, because that record may be replaced
or deleted by now. So the check is cheap for a store that fits, and a store is refused only for
current values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import StrandlineError
from strandline.changelog.records import TopicPartition
from strandline.changelog.scan import scan_batches
from strandline.statestore.declaration import declaration_of, undeclared
from strandline.statestore.keys import KeyCodec, key_codec
from strandline.statestore.restore import READERS_WAIT_S
from strandline.statestore.spec import AnySpec
from strandline.statestore.store import open_store
from strandline.statestore.values import ValueCodec

SAMPLE_OFFSETS = 1_000
"""Number of the oldest, and of the newest, offsets of a partition whose records are decoded."""
FETCH_BYTES = 1 << 20
"""Maximum bytes of one fetch."""


def is_empty(broker: Broker, changelog: str, partitions: int) -> bool:
    """Return True if a changelog has no records, so that no declaration applies to any."""
    all_of_it = [TopicPartition(changelog, number) for number in range(partitions)]
    ends = broker.offsets(all_of_it)
    return all(end.high_watermark <= end.log_start for end in ends.values())


def misfits(
    spec: AnySpec, broker: Broker, changelog: str, partitions: int, clock: Clock
) -> str | None:
    """Return why a stored key or value cannot be read as declared; None if all sampled ones can."""
    for number in range(partitions):
        tp = TopicPartition(changelog, number)
        fit = _Fit(spec)
        if any(fit.reason(*entry) for entry in _sample(broker, tp)):
            reason = _reason_in_all(fit, spec, broker, tp, clock)
            if reason is not None:
                return f"{tp}: {reason}"
    return None


class _Fit:
    """Check of stored entries against a declaration."""

    def __init__(self, spec: AnySpec) -> None:
        self.expiry = undeclared(declaration_of(spec)).expiry
        self._keys: KeyCodec[Any] = key_codec(spec.key)
        self._values = ValueCodec(spec.value, spec.name, ttl_ms=spec.ttl_ms, expiry=self.expiry)

    def reason(self, key: bytes, data: bytes) -> str | None:
        """Return why an entry does not fit the declaration; None if it does."""
        try:
            self._keys.admit(self._keys.decode(key))
            self._values.loads(data)
        except StrandlineError as error:
            return str(error)
        return None


def _sample(broker: Broker, tp: TopicPartition) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of the oldest and the newest records, without deletions."""
    ends = broker.offsets([tp])[tp]
    newest = max(ends.log_start, ends.last_stable_offset - SAMPLE_OFFSETS)
    oldest_end = min(newest, ends.log_start + SAMPLE_OFFSETS)
    yield from _entries(broker, tp, ends.log_start, oldest_end)
    yield from _entries(broker, tp, newest, ends.last_stable_offset)


def _entries(
    broker: Broker, tp: TopicPartition, start: int, end: int
) -> Iterator[tuple[bytes, bytes]]:
    for batch in scan_batches(broker, {tp: start}, {tp: end}, max_bytes=FETCH_BYTES):
        keys, values = (batch.columns.column(name).to_pylist() for name in ("key", "value"))
        yield from ((k, v) for k, v in zip(keys, values, strict=True) if v is not None)


def _reason_in_all(
    fit: _Fit, spec: AnySpec, broker: Broker, tp: TopicPartition, clock: Clock
) -> str | None:
    store = open_store(replace(spec, engine="memory"), clock=clock, expiry=fit.expiry)
    try:
        store.restore(broker, tp, wait=READERS_WAIT_S)
        return next(filter(None, (fit.reason(*entry) for entry in store.reader.stored())), None)
    finally:
        store.close()
