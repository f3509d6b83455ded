"""The errors of Strandline: few types, split by what the caller does next.

    StrandlineError
    ├── Retriable                 nothing happened; try again (later)
    │   ├── CoordinatorLoading        offsets or transactions are still being read
    │   ├── OwnerUnavailable          the process that owns the log is gone or stalled
    │   └── RequestTimedOut           no answer within the deadline
    ├── InvalidRequest            nothing happened; fix the call or its data
    │   ├── UnknownTopic · TopicExists · UnknownPartition · InvalidTopic
    │   ├── InvalidConfig · InvalidRecord · RecordTooLarge · SchemaMismatch
    │   ├── OffsetOutOfRange          the position is not in the log (any more)
    │   ├── InvalidTxnState           the call does not fit the transaction's state
    │   ├── NotInTask                 a store or topic used outside a running handler
    │   ├── Unauthenticated           a remote log asks for a (different) token
    │   └── MissingDependency         an optional package, or Java, is not there
    ├── Fenced                    someone else has taken this client's place; reopen
    │   └── ProducerFenced
    ├── TaskFailed                a handler raised; mend it or its record, then run again
    ├── TransactionAborted        roll back to the last commit, then go on
    │   └── OutOfOrderSequence        the log misses records sent before these
    ├── StorageFailed             the disk said no; free or mend it, then reopen
    │   ├── DiskFull · PartitionPoisoned
    │   └── LogLocked                 another process owns the folder
    └── CorruptLog                what is on disk is not what was written; `strandline repair`
        └── FutureFormat              written by a later version; upgrade

Foreign exceptions (OSError, Arrow's, RocksDB's) are translated where they enter.
"""

from __future__ import annotations

import errno


class StrandlineError(Exception):
    """Base of every error that Strandline raises on purpose."""


class Retriable(StrandlineError):
    """Nothing happened, and the same call may succeed later."""


class CoordinatorLoading(Retriable):
    """The offsets or transactions are still being read from the log."""


class OwnerUnavailable(Retriable):
    """The process that owns the log folder is gone, or does not answer."""


class RequestTimedOut(Retriable):
    """No answer came within the deadline."""


class InvalidRequest(StrandlineError):
    """Nothing happened: the call, or the data in it, must be changed first."""


class UnknownTopic(InvalidRequest):
    """No topic of that name (or that topic id) exists."""


class TopicExists(InvalidRequest):
    """A topic of that name exists already."""


class UnknownPartition(InvalidRequest):
    """The topic has no partition of that number."""


class InvalidTopic(InvalidRequest):
    """The name cannot be a topic's, or is reserved."""


class InvalidConfig(InvalidRequest):
    """A setting is unknown, or its value is not allowed."""


class InvalidRecord(InvalidRequest):
    """A record cannot be stored in that topic, or cannot be encoded or decoded."""


class RecordTooLarge(InvalidRecord):
    """A record or batch is larger than the topic's `max.message.bytes`."""


class SchemaMismatch(InvalidRecord):
    """Columns do not fit the topic's schema, or a schema does not extend the last one."""


class OffsetOutOfRange(InvalidRequest):
    """The position lies before the log's start or beyond its end."""


class InvalidTxnState(InvalidRequest):
    """The call does not fit the state that the transaction is in."""


class NotInTask(InvalidRequest):
    """A store or a topic was used outside a running handler."""


class Unauthenticated(InvalidRequest):
    """The owner of a remote log asks for a token, or does not accept this one."""


class MissingDependency(InvalidRequest):
    """An optional package, or a Java runtime, is needed and missing."""


class Fenced(StrandlineError):
    """Another instance has taken this one's place; what it had not committed is void."""


class ProducerFenced(Fenced):
    """A newer producer with the same transactional id, or a newer epoch, exists."""


class TaskFailed(StrandlineError):
    """A task has stopped at a record (or timer) whose handler raised; nothing of that was kept."""


class TransactionAborted(StrandlineError):
    """The transaction is gone; roll back to the last commit and go on from there."""


class OutOfOrderSequence(TransactionAborted):
    """A batch's sequence leaves a gap, so records sent before it were lost."""


class StorageFailed(StrandlineError):
    """The file system refused an operation."""


class DiskFull(StorageFailed):
    """There is no space left on the device, or a quota is used up."""


class PartitionPoisoned(StorageFailed):
    """An earlier write or fsync of this partition failed; it is read-only until reopened."""


class LogLocked(StorageFailed):
    """Another process owns the log folder."""


class CorruptLog(StrandlineError):
    """A file holds something else than what was written to it."""


REPAIR = "run `strandline repair`"
"""The way out of most damage to a log; it shows first what it would do, and what is lost."""


def cause(error: CorruptLog) -> str:
    """What an error says without its way out, for a message that has one of its own.

    >>> cause(CorruptLog(f"x.log: the frame at byte 0 is cut off; {REPAIR}"))
    'x.log: the frame at byte 0 is cut off'
    """
    return str(error).removesuffix(f"; {REPAIR}")


class FutureFormat(CorruptLog):
    """A file or folder was written by a later version of Strandline."""


def from_os_error(error: OSError, doing: str, path: str) -> StorageFailed:
    """Translate an OSError met while `doing` something to `path`.

    >>> from_os_error(OSError(28, "No space left on device"), "append to", "x.log")
    DiskFull('cannot append to x.log: No space left on device; free some space, then open the log again')
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"cannot {doing} {path}: {error.strerror}; free some space, then open the log again"
        )
    return StorageFailed(f"cannot {doing} {path}: {error.strerror or error}")
