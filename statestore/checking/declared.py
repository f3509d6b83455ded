"""Check of stored keys and values against recorded declarations: each of them is decoded.

A value is compared with the recorded structure of its type, because the classes of the app are not
available here. Values of a serde of the app's own are not checked.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count

from strandline.changelog.embedded.checking.findings import Severity
from strandline.changelog.embedded.checking.folder import CheckedLog
from strandline.changelog.embedded.checking.scanned import ScannedPartition
from strandline.changelog.errors import FutureFormat, StrandlineError
from strandline.changelog.records import TopicPartition
from strandline.statestore.declaration import Declaration, plain_serde
from strandline.statestore.engine import StorePosition
from strandline.statestore.fold import FOLD_BYTES, LatestValues
from strandline.statestore.key_types import key_from_wire
from strandline.statestore.keys import decode_key, key_codec
from strandline.statestore.recorded import SUFFIX, RecordedDeclarations
from strandline.statestore.value_types import misfit
from strandline.statestore.values import split

KIND = "declaration"
WAY_OUT = (
    "declare the store as it was when that was written; or start over, with `strandline reset` of "
    "its app or with another name for the store"
)


def check_declared(checked: CheckedLog, fold_bytes: int = FOLD_BYTES) -> None:
    """Check the changelogs of all stores whose declaration is recorded."""
    topics = {scanned.meta.name for scanned in checked.partitions.values()}
    for topic in sorted(name for name in topics if name.endswith(SUFFIX)):
        recorded = _recorded(checked, topic, fold_bytes)
        for changelog in sorted(recorded.stores):
            for number in count():
                scanned = checked.named(changelog, number)
                if scanned is None:
                    break
                if not scanned.gaps:
                    _Check(checked, scanned, recorded).run(fold_bytes)


def _recorded(checked: CheckedLog, topic: str, fold_bytes: int) -> RecordedDeclarations:
    scanned = checked.named(topic)
    if scanned is None or scanned.gaps:
        return RecordedDeclarations()
    try:
        with ExitStack() as closing:
            return RecordedDeclarations.of(_folded(scanned, fold_bytes, closing).entries())
    except FutureFormat:
        raise
    except (StrandlineError, ValueError) as error:
        checked.report.add(
            Severity.DAMAGE,
            KIND,
            scanned.folder,
            f"has no readable declarations of stores: {error}",
            way_out=f"delete topic {topic!r} while the app is stopped: its next start records them",
            partition=scanned.topic_partition,
        )
        return RecordedDeclarations()


def _folded(scanned: ScannedPartition, fold_bytes: int, closing: ExitStack) -> LatestValues:
    """Return the last committed value of each key of a partition."""
    fold = LatestValues(fold_bytes, closing)
    start = scanned.manifest.log_start
    clipped = (batch.clip(start, scanned.next_offset) for batch in scanned.committed())
    position = StorePosition(scanned.meta.topic_id, 0, scanned.next_offset)
    fold.add((batch for batch in clipped if len(batch)), position)
    return fold


class _Check:
    """Check of one partition of a changelog."""

    def __init__(
        self, checked: CheckedLog, scanned: ScannedPartition, recorded: RecordedDeclarations
    ) -> None:
        self._checked = checked
        self._scanned = scanned
        tp = scanned.topic_partition
        self._declaration = recorded.stores[tp.topic]
        self._is_current = recorded.is_current(TopicPartition(*tp))
        self._rewritten = recorded.rewritten_up_to(tp)
        self._keys = key_codec(key_from_wire(self._declaration.key))

    def run(self, fold_bytes: int) -> None:
        """Decode every key and value of the partition."""
        with ExitStack() as closing:
            try:
                for key, data in _folded(self._scanned, fold_bytes, closing).entries():
                    self._check(key, data)
            except FutureFormat:
                raise
            except StrandlineError as error:
                self._add(f"cannot be read as a changelog: {error}")

    def _check(self, key: bytes, data: bytes) -> None:
        try:
            self._keys.admit(self._keys.decode(key))
        except StrandlineError:
            self._add(f"has a key that is no {self._keys.name}: {shown_key(key)}")
            return
        reason = _unlike(data, self._declaration_of(key))
        if reason is not None:
            shown = repr(self._keys.decode(key)) if self._keys.is_foreign else shown_key(key)
            self._add(f"has a value that is not as declared, under the key {shown}: {reason}")

    def _declaration_of(self, key: bytes) -> Declaration:
        """Return the declaration of a key's value: the previous one if it is not rewritten yet."""
        before = self._declaration.before
        is_new = self._is_current or (self._rewritten is not None and key <= self._rewritten)
        return self._declaration if before is None or is_new else before

    def _add(self, what: str) -> None:
        self._checked.report.add(
            Severity.DAMAGE,
            KIND,
            self._scanned.folder,
            what,
            way_out=WAY_OUT,
            partition=self._scanned.topic_partition,
        )


def _unlike(data: bytes, declaration: Declaration) -> str | None:
    """Return why stored bytes are no value of the declared type; None if they are one."""
    try:
        body, _ = split(data, declaration.expiry)
        value = plain_serde(declaration.form).loads(body)
    except StrandlineError as error:
        return str(error)
    return None if declaration.value is None else misfit(declaration.value, value)


def shown_key(key: bytes) -> str:
    """Return a stored key as a Python literal; the bytes themselves if they are no key."""
    try:
        return repr(decode_key(key))
    except StrandlineError:
        return repr(key)
