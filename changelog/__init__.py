"""The log: topics, partitions, producers, transactions, committed offsets.

`open` gives a `Log` on whatever holds it. Everything else here is the vocabulary that
programs share with it; `changelog.embedded.owner` is the embedded log itself.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from strandline.changelog import errors, location
from strandline.changelog.errors import MissingDependency, StrandlineError
from strandline.changelog.records import (
    Batch,
    CommittedOffset,
    ConsumerRecord,
    PartitionOffsets,
    TopicInfo,
    TopicPartition,
)

if TYPE_CHECKING:
    from strandline.changelog.backups import BackupReport, RestoreReport
    from strandline.changelog.broker import Broker
    from strandline.changelog.clock import Clock
    from strandline.changelog.embedded.context import Durability
    from strandline.changelog.flight.attach import Role
    from strandline.changelog.log import Log

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
    "restore",
]


def open(  # noqa: A001 — as in `changelog.open(…)`, like `gzip.open`
    url: str | os.PathLike[str],
    *,
    role: Role = "own_or_attach",
    durability: Durability = "fsync",
    clock: Clock | None = None,
    token: str | None = None,
    create: bool = True,
) -> Log:
    """Open the log at `url`: a folder (made if need be), `strandline://host:port`, or `kafka://host:port`.

    A folder is owned by the first process that opens it; the others attach to that one, and
    one of them takes over when it dies. `role` says how: own_or_attach (programs that run on),
    attach_or_spawn (short-lived tools: an owner is started in the background if there is none),
    own (raise LogLocked rather than attach). `durability` is "fsync" (an acknowledged append
    survives a power cut) or "os" (it survives `kill -9`), and the owner's to choose. `token` is what
    a log at a strandline:// URL asks for, by default that of the URL or of STRANDLINE_TOKEN. On an
    Apache Kafka cluster, with librdkafka's properties in the URL (kafka://host:9092?client.id=me), these
    three mean nothing; it needs the package confluent-kafka (the extra `kafka`).

    With `create=False` a folder that holds no log is InvalidConfig, for programs that only read.

    Raises LogLocked, OwnerUnavailable, Unauthenticated, CorruptLog, FutureFormat,
    StorageFailed, InvalidConfig, MissingDependency.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, open(folder) as log:
    ...     _ = log.create_topic("greetings")
    ...     _ = log.append("greetings", [{"key": b"a", "value": b"hello"}])
    ...     log.read("greetings")["value"].to_pylist()
    [b'hello']
    """
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
    """Back up the log in the folder `log` into the folder `to`, while it is in use or not.

    The backup shows the whole log at one moment. What earlier backups in `to` have is not copied again.
    State folders and pins are no part of it: stores are restored from their changelogs.

    Args:
        log: Folder of the log.
        to: Folder of the backups, made if need be; it takes any number of backups.

    Returns:
        The backup's name and moment, and how much was copied.

    Raises:
        InvalidConfig: One of the two is not a folder that serves.
        LogLocked: Another process works in `to`.
        StorageFailed: A disk failed or is full, or the owner of the log ended; back up again.
    """
    from strandline.changelog import backups

    return backups.backup(log, to)


def restore(
    backups: str | os.PathLike[str], to: str | os.PathLike[str], *, name: str | None = None
) -> RestoreReport:
    """Make a log in the folder `to`, of a backup in the folder `backups`.

    It has an id of its own. It is verified, and checked, before it is in its place.

    Args:
        backups: Folder of backups.
        to: Folder of the new log, which does not exist yet or is empty.
        name: The backup, as `backup` reported it; the last one by default.

    Returns:
        Ids of the new log and of the one that was backed up, and the moment it shows.

    Raises:
        InvalidConfig: There is no such backup, or there is something at `to`.
        CorruptLog: The backup is damaged; nothing was made.
        StorageFailed: A disk failed or is full; nothing was made.
    """
    from strandline.changelog.backups import restoring

    return restoring.restore(backups, to, name=name)


def _kafka(url: str, clock: Clock | None) -> Broker:
    try:
        from strandline.changelog.kafka.broker import connect
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "a log on a Kafka cluster needs the package confluent-kafka: "
            "pip install 'strandline[kafka]', in a checkout pip install '.[kafka]'"
        ) from error
    return connect(url, clock=clock)
