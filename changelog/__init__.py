"""The log: topics, partitions, producers, transactions, committed offsets.

`open` returns a `Log`, on a folder, a remote owner or a Kafka cluster. The other names are the
types and errors that programs exchange with it. `changelog.embedded.owner` implements the
embedded log.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from strandline.changelog import errors
from strandline.changelog.errors import MissingDependency, StrandlineError

if TYPE_CHECKING:
    from strandline.changelog.backups import BackupReport, PruneReport, RestoreReport
    from strandline.changelog.broker import Broker
    from strandline.changelog.clock import Clock
    from strandline.changelog.flight.attach import Role
    from strandline.changelog.log import Log
    from strandline.changelog.records import (
        Batch,
        CommittedOffset,
        ConsumerRecord,
        PartitionOffsets,
        TopicInfo,
        TopicPartition,
    )
    from strandline.changelog.storage import Durability

__all__ = [
    "Batch",
    "CommittedOffset",
    "ConsumerRecord",
    "PartitionOffsets",
    "StrandlineError",
    "TopicInfo",
    "TopicPartition",
    "backup",
    "errors",
    "open",
    "prune",
    "restore",
]

_RECORDS = {name for name in __all__ if name[0].isupper()} - {"StrandlineError"}
"""Names that `changelog.records` defines.

They are imported at their first use, because that module imports Arrow and numpy, and errors alone
are enough to list the commands.
"""


def __getattr__(name: str) -> Any:
    """Import a type of records at its first use and make it an attribute of this module."""
    if name not in _RECORDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module("strandline.changelog.records"), name)
    globals()[name] = found
    return found


def open(  # noqa: A001 — as in `changelog.open(…)`, like `gzip.open`
    url: str | os.PathLike[str],
    *,
    role: Role = "own_or_attach",
    durability: Durability = "fsync",
    clock: Clock | None = None,
    token: str | None = None,
    create: bool = True,
) -> Log:
    """Open the log at `url`: a folder, `strandline://host:port` or `kafka://host:port`.

    The first process that opens a folder owns it. Later processes attach to the owner, and one
    of them takes over when the owner dies.

    Args:
        url: Folder of the log, or the URL of a log on the network. A Kafka URL may carry
            properties of librdkafka (kafka://host:9092?client.id=me) and needs the package
            confluent-kafka (the extra `kafka`).
        role: Role of this process for a folder. "own_or_attach" (default): own the folder, or
            attach to its owner; for programs that keep running. "attach_or_spawn": attach, and
            start an owner in the background if there is none; for short-lived tools. "own":
            raise LogLocked instead of attaching. Ignored for URLs.
        durability: "fsync" (default): an acknowledged append survives a power cut. "os": it
            survives `kill -9`, but not a power cut. Only the owner's choice counts. Ignored
            for URLs.
        clock: Source of time and identifiers. The system's by default; tests pass their own.
        token: Token for a strandline:// URL; by default the one in the URL, or STRANDLINE_TOKEN.
        create: True (default): create the folder and its log if they do not exist. False: raise
            InvalidConfig then; for programs that only read.

    Returns:
        The open log. Close it, or use it in a `with` statement.

    Raises:
        LogLocked: Another process owns the folder, and `role` is "own".
        OwnerUnavailable: The owner does not answer.
        Unauthenticated: The log requires a token, or does not accept this one.
        CorruptLog: A file of the log is damaged.
        FutureFormat: A later version wrote the log.
        StorageFailed: The file system refused an operation.
        InvalidConfig: `url` or an option is invalid, or there is no log and `create` is False.
        MissingDependency: A Kafka URL is given and confluent-kafka is not installed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, open(folder) as log:
    ...     _ = log.create_topic("greetings")
    ...     _ = log.append("greetings", [{"key": b"a", "value": b"hello"}])
    ...     log.read("greetings")["value"].to_pylist()
    [b'hello']
    """
    from strandline.changelog import location
    from strandline.changelog.log import Log

    text = os.fspath(url)
    location.check(text)
    if not create:
        location.check_exists(text)
    if location.is_kafka(text):
        return Log(_kafka(text, clock), clock=clock)
    from strandline.changelog.flight import address, attach

    if location.is_served(text):
        return Log(address.connect(text, token=token, clock=clock), clock=clock)
    broker = attach.attach_or_own(text, role=role, durability=durability, clock=clock)
    return Log(broker, clock=clock)


def backup(log: str | os.PathLike[str], to: str | os.PathLike[str]) -> BackupReport:
    """Back up the log in the folder `log` into the folder `to`; the log may be in use.

    The backup shows the whole log at one moment. It is incremental: data that an earlier backup
    in `to` contains is not copied again. State folders and pins are not included, because stores
    are restored from their changelogs.

    Args:
        log: Folder of the log.
        to: Folder of the backups, created if it does not exist. It holds any number of backups.

    Returns:
        Name and time of the backup, and the number of bytes copied.

    Raises:
        InvalidConfig: One of the two folders cannot be used.
        LogLocked: Another process is using `to`.
        StorageFailed: A disk failed or is full, or the owner of the log ended. Back up again.
    """
    from strandline.changelog import backups

    return backups.backup(log, to)


def restore(
    backups: str | os.PathLike[str], to: str | os.PathLike[str], *, name: str | None = None
) -> RestoreReport:
    """Restore a backup from the folder `backups` as a new log in the folder `to`.

    The new log gets an id of its own. It is verified and checked before it is moved to `to`.

    Args:
        backups: Folder of the backups.
        to: Folder of the new log. It must be empty or not exist.
        name: Name of the backup, as `backup` returned it; the latest one by default.

    Returns:
        Ids of the new and of the original log, and the time of the backup.

    Raises:
        InvalidConfig: There is no such backup, or `to` is not empty.
        CorruptLog: The backup is damaged; nothing was created.
        StorageFailed: A disk failed or is full; nothing was created.
    """
    from strandline.changelog.backups import restoring

    return restoring.restore(backups, to, name=name)


def prune(backups: str | os.PathLike[str], *, keep: int) -> PruneReport:
    """Remove all but the last `keep` backups from the folder `backups`.

    Data that only the removed backups contain is removed with them.

    Args:
        backups: Folder of the backups.
        keep: Number of backups to keep, at least 1.

    Returns:
        Names of the removed and of the kept backups, and the number of bytes freed.

    Raises:
        InvalidConfig: `backups` is no folder of backups, or `keep` is not a positive number.
        CorruptLog: A backup to be kept is damaged; nothing was removed.
        LogLocked: Another process is using `backups`.
        StorageFailed: A disk failed. Prune again.
    """
    from strandline.changelog.backups import pruning

    return pruning.prune(backups, keep=keep)


def _kafka(url: str, clock: Clock | None) -> Broker:
    try:
        from strandline.changelog.kafka.librdkafka import require
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "a log on a Kafka cluster needs the package confluent-kafka: "
            "pip install 'strandline[kafka]', in a checkout pip install '.[kafka]'"
        ) from error
    require()
    from strandline.changelog.kafka.broker import connect

    return connect(url, clock=clock)
