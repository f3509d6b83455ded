"""Rewriting the values of one partition for a changed declaration, exactly once.

Values are rewritten in the order of their keys. Each transaction contains the new values of some
keys and a record in the topic of declarations with the last rewritten key. After a crash the next
opening continues there, so each value is rewritten once. The transactional id is the partition's
own. So a worker that opens the partition fences a previous rewriter before it reads its progress.

No handler runs on the partition meanwhile. Afterwards the state is restored to the end of the
changelog, so that engine, standby copies and readers see only values from the changelog.

Before a declaration is recorded that needs an `upgrade`, `try_upgrade` converts all values of all
partitions once, and writes nothing. A function that fails for one of them changes nothing, and the
older program can go on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from strandline.changelog.arrays import of_items
from strandline.changelog.broker import Broker
from strandline.changelog.client.producer import Producer
from strandline.changelog.clock import Clock
from strandline.changelog.errors import (
    CorruptLog,
    InvalidConfig,
    InvalidRecord,
    ProducerFenced,
    RequestTimedOut,
    TransactionAborted,
)
from strandline.changelog.records import PartitionOffsets, TopicPartition
from strandline.changelog.scan import scan_batches
from strandline.statestore.compacted_table import records
from strandline.statestore.declaration import Declaration, compare, declaration_of, plain_serde
from strandline.statestore.keys import decode_key
from strandline.statestore.recorded import (
    DeclarationLog,
    RewriteProgress,
    append_at_once,
    partition_key,
)
from strandline.statestore.serdes import value_serde
from strandline.statestore.spec import AnySpec
from strandline.statestore.store import AnyStore
from strandline.statestore.values import framed, split

_log = logging.getLogger("strandline")

CHUNK_RECORDS = 10_000
"""Maximum number of values that are rewritten in one transaction."""
CHUNK_BYTES = 4 << 20
"""Approximate maximum bytes of keys and values that are rewritten in one transaction."""


def try_upgrade(
    spec: AnySpec, becomes: Declaration, changelog: str, partitions: int, broker: Broker
) -> dict[TopicPartition, PartitionOffsets]:
    """Convert the current values of a store, one partition after another, and write nothing.

    The changelog also has values that were replaced since, of older declarations too. So a failure
    counts only if no later value or deletion of its key follows; memory is for such keys.

    Args:
        spec: The store.
        becomes: Declaration to record, with that of the stored values as `before`.
        changelog: Topic of its changelog.
        partitions: Number of partitions of the changelog.
        broker: The log.

    Returns:
        The offsets of each partition before its values were read.

    Raises:
        InvalidConfig: The store's `upgrade` has raised for a current value, or has returned no
            value of the declared type.
    """
    work = _Rewriting(spec, changelog, becomes)
    ends = broker.offsets([TopicPartition(changelog, number) for number in range(partitions)])
    for tp, end in ends.items():
        failed: dict[bytes, str] = {}
        start = {tp: end.log_start}
        for batch in scan_batches(broker, start, {tp: end.last_stable_offset}):
            keys, values = (batch.columns.column(name).to_pylist() for name in ("key", "value"))
            for key, data in zip(keys, values, strict=True):
                failed.pop(key, None)
                if data is not None:
                    try:
                        work.rewritten(key, data)
                    except (_UpgradeFailed, CorruptLog) as error:
                        failed[key] = str(error)
        if failed:
            raise InvalidConfig(
                f"store {spec.name!r}, {tp}: {next(iter(failed.values()))}; nothing was changed: fix "
                "upgrade=, or go on with the program that has written the values"
            )
    return ends


def rewrite(
    store: AnyStore, changelog: TopicPartition, log: DeclarationLog, broker: Broker, clock: Clock
) -> int:
    """Rewrite the values of a restored partition that are not of its store's declaration yet.

    Returns:
        Number of values rewritten.

    Raises:
        InvalidConfig: The store's `upgrade` has raised, or has returned no value of the declared
            type. Values rewritten before stay rewritten.
        RequestTimedOut: A transaction was aborted, or another worker has taken over the partition.
            The call may be repeated.
    """
    try:
        return _rewrite(store, changelog, log, broker, clock)
    except _UpgradeFailed as error:
        raise InvalidConfig(
            f"store {store.spec.name!r}, {changelog}: {error}; this key and the later ones are "
            "unchanged: fix upgrade=, and start again"
        ) from error.__cause__
    except (ProducerFenced, TransactionAborted) as error:
        raise RequestTimedOut(
            f"rewriting the values of {changelog} was interrupted: {error}; it continues when the "
            "partition is opened again"
        ) from error


def _rewrite(
    store: AnyStore, changelog: TopicPartition, log: DeclarationLog, broker: Broker, clock: Clock
) -> int:
    producer = Producer(
        broker, transactional_id=f"{changelog.topic}-rewriting-{changelog.partition}", clock=clock
    )
    try:
        # Read after the producer was made, which has fenced any other rewriter of the partition.
        recorded = log.read()
        store.restore(broker, changelog)
        if recorded.is_current(changelog):
            return 0
        declaration = recorded.stores[changelog.topic]
        work = _Rewriting(store.spec, changelog, declaration)
        count = 0
        for keys, values, after in _chunks(work, store, recorded.rewritten_up_to(changelog)):
            mark = msgspec.json.encode(RewriteProgress(declaration.version, after))
            changes = of_items(keys, pa.binary()), of_items(values, pa.binary())
            appends = [log.columns({partition_key(changelog): mark})]
            if keys:
                appends.append((changelog, records(*changes, clock.now_ms())))
            append_at_once(producer, appends)
            count += len(keys)
    finally:
        producer.close()
    store.restore(broker, changelog)
    fields = {"store": store.spec.name, "partition": changelog.partition, "records": count}
    _log.info("store %s, partition %d: %d values rewritten", *fields.values(), extra=fields)
    return count


Chunk = tuple[list[bytes], list[bytes], bytes | None]
"""Keys, their new values, and the last rewritten key, which is None in the last chunk."""


def _chunks(work: _Rewriting, store: AnyStore, after: bytes | None) -> Iterator[Chunk]:
    keys: list[bytes] = []
    values: list[bytes] = []
    size = 0
    for key, data in store.reader.stored(after):
        if len(keys) >= CHUNK_RECORDS or size >= CHUNK_BYTES:
            yield keys, values, keys[-1]
            keys, values, size = [], [], 0
        keys.append(key)
        values.append(work.rewritten(key, data))
        size += len(key) + len(values[-1])
    yield keys, values, None


class _Rewriting:
    """Conversion of values of one declaration to those of the next."""

    def __init__(
        self, spec: AnySpec, changelog: TopicPartition | str, declaration: Declaration
    ) -> None:
        assert declaration.before is not None
        self._before = declaration.before
        self._expiry = declaration.expiry
        self._serde = value_serde(spec.value)
        declared = declaration_of(spec)
        change = compare(self._before, declared, can_upgrade=spec.upgrade is not None)
        if change.kind == "refused":
            reasons = "; ".join(change.reasons)
            raise InvalidConfig(
                f"store {spec.name!r}: values of {changelog} are still to be rewritten ({reasons}); "
                "declare the store with its upgrade= until all partitions are"
            )
        self._upgrade = spec.upgrade if change.reasons else None

    def rewritten(self, key: bytes, data: bytes) -> bytes:
        """Return the new stored bytes of a key's value. Raises _UpgradeFailed."""
        body, expires = split(data, self._before.expiry)
        if self._upgrade is not None:
            body = self._upgraded(key, body)
        has_expiry = self._expiry == "always" or (expires and self._expiry == "marked")
        return framed(body, expires) if has_expiry else body

    def _upgraded(self, key: bytes, body: bytes) -> bytes:
        assert self._upgrade is not None
        try:
            new = self._upgrade(plain_serde(self._before.form).loads(body))
            if new is None:
                raise TypeError("upgrade= returned None, which is no value of a store")
            data = self._serde.dumps(new)
            self._serde.loads(data)
            return data
        except MemoryError:
            raise
        except Exception as error:
            why = error.__cause__ if isinstance(error, InvalidRecord) else None
            raise _UpgradeFailed(
                f"upgrade= failed for the key {decode_key(key)!r:.80}: "
                f"{error!r}{f' ({why})' if why else ''}"
            ) from error


class _UpgradeFailed(Exception):
    """The store's `upgrade` has raised, or has returned no value of the declared type."""
