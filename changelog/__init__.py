"""The log: topics, partitions, producers, transactions, committed offsets.

`open` gives a `Log` on whatever holds it. Everything else here is the vocabulary that
programs share with it; `changelog.embedded.owner` is the embedded log itself.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from changelog import errors, location
from changelog.errors import MissingDependency, StrandlineError
from changelog.records import (
    Batch,
    CommittedOffset,
    ConsumerRecord,
    PartitionOffsets,
    TopicInfo,
    TopicPartition,
)

if TYPE_CHECKING:
    from changelog.broker import Broker
    from changelog.clock import Clock
    from changelog.embedded.environment import Durability
    from changelog.flight.attach import Role
    from changelog.log import Log

__strandline__ = True

__all__ = [
    "Batch",
    "CommittedOffset",
    "ConsumerRecord",
    "PartitionOffsets",
    "StrandlineError",
    "TopicInfo",
    "TopicPartition",
    "errors",
    "open",
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
    from changelog.log import Log

    text = os.fspath(url)
    location.check(text)
    if not create:
        location.check_exists(text)
    if location.is_kafka(text):
        return Log(_kafka(text, clock), clock=clock)
    from changelog.flight import address, attach

    if location.is_served(text):
        return Log(address.connect(text, token=token, clock=clock), clock=clock)
    broker = attach.attach_or_own(text, role=role, durability=durability, clock=clock)
    return Log(broker, clock=clock)


def _kafka(url: str, clock: Clock | None) -> Broker:
    try:
        from changelog.kafka.broker import connect
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "a log on a Kafka cluster needs the package confluent-kafka: "
            "pip install 'strandline[kafka]', in a checkout pip install '.[kafka]'"
        ) from error
    return connect(url, clock=clock)
