"""Crash points: every operation on the disk has a name.

A name consists of the step that runs, the kind of file, and the operation:
`prepare.transactions.fsync`, `roll.manifest.rename`, `recovery.segment.truncate`. The step is read
off the stack: the innermost function in STEPS, after `recovery` while the log is being opened.
POINTS is the list of all names; `test_battery` fails when the workload meets another one, or misses
one of these.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from strandline.changelog.layout import (
    CONSUMER_OFFSETS,
    STATE,
    TOPICS,
    TRANSACTION_STATE,
    segment_of,
    topic_copy,
)
from tests.crash.twin import Operation, PowerStorage

STEPS = {
    "Owner.append": "append",
    "OpenFolder.tick": "tick",
    "Owner._commit_offsets": "offsets",
    "Owner.add_offsets": "offsets",
    "OpenFolder._close_in_order": "close",
    "LogMaintenance._delete_due": "remove",
    "TopicCatalog.create": "create",
    "TopicCatalog.alter": "alter",
    "TopicCatalog.delete": "delete",
    "TopicCatalog.alter_log": "config",
    "TopicCatalog.__init__": "catalog",
    "Partition._roll": "roll",
    "Partition._reserve": "reserve",
    "Partition.begin_epoch": "epoch",
    "_Cleaning.run": "clean",
    "Partition.drop_segments": "drop",
    "KeptPins._create": "pin",
    "KeptPins._renew": "use",
    "KeptPins._release": "unpin",
    "TransactionLog.new_producer_id": "producer_ids",
    "Coordinator._write_empty": "init",
    "Coordinator._abort": "abort",
    "Coordinator.recover": "complete",
    "GroupCommit.finalize": "settle",
    "GroupCommit._run": "commit",
    "GroupCommit._write_markers": "mark",
    "Changelogged.checkpoint": "checkpoint",
    "Changelogged.refill": "restore",
    "Changelogged.wipe": "wipe",
    "SnapshotEngine.__init__": "store",
    "open_partition": "partition",
    "folder_meta": "folder",
}
"""Step names by qualified name of the function."""

RECOVERY = "OpenFolder._open"
_SYSTEM = {TRANSACTION_STATE: "transactions", CONSUMER_OFFSETS: "offsets"}


def named(storage: PowerStorage, operation: Operation) -> str:
    """Return the name of the operation in progress. Call this from the hook itself."""
    running = list(_running())
    step = next((STEPS[name] for name in running if name in STEPS), None)
    where = "recovery" if RECOVERY in running else None
    file = _file(storage, operation.path)
    if step == "commit" and file == "transactions":
        step = "prepare"
    words = [where, step, file, operation.kind]
    return ".".join(word for word in words if word)


def _running() -> Iterator[str]:
    frame = sys._getframe(2)
    while frame is not None:
        yield frame.f_code.co_qualname
        frame = frame.f_back  # type: ignore[assignment]


def _file(storage: PowerStorage, path: str) -> str:
    """Return the kind of a file or folder."""
    top, _, rest = path.removesuffix(".tmp").partition("/")
    if top == STATE:
        return "store"
    if top != TOPICS:
        return top.removesuffix(".meta") or "root"
    topic_id, _, inside = rest.partition("/")
    if not inside:
        return "topic_folder"
    number, _, name = inside.partition("/")
    if not number.isdecimal():
        return "topic_copy"
    if not name:
        return "folder"
    if segment_of(name) is not None and name.endswith(".log"):
        topic = storage.content(topic_copy(topic_id)).decode()
        return next((file for name, file in _SYSTEM.items() if f'"{name}"' in topic), "segment")
    return name.rpartition(".")[2].replace("meta", "manifest")


_KINDS = {
    "abort.offsets": "append fsync",
    "abort.segment": "append fsync",
    "alter.root": "sync_dir",
    "alter.topic_copy": "create append fsync rename",
    "alter.topic_folder": "make_dir sync_dir",
    "alter.topics": "create append fsync rename",
    "append.folder": "make_dir",
    "append.segment": "append fsync",
    "checkpoint.store": "create append fsync rename sync_dir",
    "clean.aborted": "create append fsync rename",
    "clean.folder": "sync_dir",
    "clean.index": "create append",
    "clean.keys": "create append unlink",
    "clean.manifest": "create append fsync rename",
    "clean.offsets": "create append fsync",
    "clean.segment": "create append fsync",
    "clean.transactions": "create append fsync",
    "close.aborted": "unlink",
    "close.clean": "create append fsync rename",
    "close.index": "unlink",
    "close.offsets": "fsync",
    "close.root": "sync_dir",
    "close.segment": "fsync unlink",
    "close.transactions": "fsync",
    "commit.offsets": "fsync",
    "commit.segment": "fsync",
    "config.config": "create append fsync rename",
    "config.root": "sync_dir",
    "config.strandline": "create append fsync rename",
    "create.root": "sync_dir",
    "create.topic_copy": "create append fsync rename",
    "create.topic_folder": "make_dir sync_dir",
    "create.topics": "create append fsync rename unlink",
    "delete.root": "sync_dir",
    "delete.topic_copy": "unlink",
    "delete.topic_folder": "sync_dir",
    "delete.topics": "create append fsync rename",
    "drop.folder": "sync_dir",
    "drop.manifest": "create append fsync rename",
    "init.transactions": "append fsync",
    "mark.offsets": "append",
    "mark.segment": "append",
    "offsets.folder": "make_dir",
    "offsets.offsets": "append fsync",
    "pin.pins": "make_dir link sync_dir create append fsync rename",
    "pin.segment": "fsync",
    "prepare.transactions": "append fsync",
    "producer_ids.folder": "make_dir",
    "producer_ids.transactions": "append fsync",
    "recovery.catalog.root": "sync_dir",
    "recovery.catalog.topic_copy": "create append fsync rename unlink",
    "recovery.catalog.topic_folder": "make_dir sync_dir",
    "recovery.catalog.topics": "create append fsync rename unlink",
    "recovery.clean": "unlink",
    "recovery.complete.offsets": "append fsync",
    "recovery.complete.segment": "append fsync",
    "recovery.complete.transactions": "append fsync",
    "recovery.create.root": "sync_dir",
    "recovery.create.topic_copy": "create append fsync rename",
    "recovery.create.topic_folder": "make_dir sync_dir",
    "recovery.create.topics": "create append fsync rename unlink",
    "epoch.folder": "sync_dir",
    "epoch.manifest": "create append fsync rename",
    "recovery.epoch.folder": "sync_dir",
    "recovery.epoch.manifest": "create append fsync rename",
    "recovery.folder.root": "sync_dir",
    "recovery.folder.strandline": "create append fsync rename unlink",
    "recovery.partition.aborted": "unlink",
    "recovery.partition.folder": "sync_dir",
    "recovery.partition.index": "create append unlink",
    "recovery.partition.manifest": "unlink",
    "recovery.partition.offsets": "truncate rewrite fsync unlink",
    "recovery.partition.producers": "unlink",
    "recovery.partition.segment": "truncate rewrite fsync unlink",
    "recovery.partition.transactions": "truncate rewrite fsync unlink",
    "recovery.reserve.folder": "sync_dir",
    "recovery.reserve.manifest": "create append fsync rename",
    "recovery.roll.aborted": "create append fsync rename",
    "recovery.roll.folder": "sync_dir",
    "recovery.roll.index": "create append unlink",
    "recovery.roll.manifest": "create append fsync rename",
    "recovery.roll.offsets": "create fsync",
    "recovery.roll.producers": "create append fsync rename unlink",
    "recovery.roll.segment": "create fsync",
    "recovery.roll.transactions": "create fsync",
    "recovery.root": "sync_dir",
    "recovery.unpin.pins": "unlink sync_dir",
    "remove.aborted": "unlink",
    "remove.index": "unlink",
    "remove.offsets": "unlink",
    "remove.segment": "unlink",
    "remove.transactions": "unlink",
    "reserve.folder": "sync_dir",
    "reserve.manifest": "create append fsync rename",
    "restore.store": "create append fsync rename unlink sync_dir",
    "roll.aborted": "create append fsync rename",
    "roll.folder": "sync_dir",
    "roll.index": "create append",
    "roll.manifest": "create append fsync rename",
    "roll.offsets": "create fsync",
    "roll.producers": "create append fsync rename unlink",
    "roll.segment": "create fsync",
    "roll.transactions": "create fsync",
    "root": "make_dir",
    "settle.offsets": "fsync",
    "settle.segment": "fsync",
    "settle.transactions": "append",
    "store.store": "make_dir",
    "tick.offsets": "fsync",
    "tick.segment": "fsync",
    "tick.transactions": "fsync",
    "unpin.pins": "unlink sync_dir",
    "use.pins": "create append fsync rename sync_dir",
    "wipe.store": "unlink sync_dir",
}

POINTS = frozenset(f"{place}.{kind}" for place, kinds in _KINDS.items() for kind in kinds.split())
AFTERMATH = frozenset(
    f"{place}.unlink" for place, kinds in _KINDS.items() if "create" in kinds.split()
)
"""Points that can occur after a failure, because a file left half-written is removed before it is
created again."""
