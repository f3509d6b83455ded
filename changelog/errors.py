"""The errors of Strandline: few types, split by what the caller does next.

    StrandlineError
    ├── Retriable                 retry later
    │   ├── CoordinatorLoading        offsets or transactions are still being read
    │   ├── OwnerUnavailable          the process that owns the log is gone or stalled
    │   ├── RegistryUnavailable       the schema registry does not answer
    │   ├── QuotaExceeded             the client has too much in flight
    │   └── RequestTimedOut           no answer within the deadline
    ├── InvalidRequest            nothing happened; fix the call or its data
    │   ├── UnknownTopic · TopicExists · UnknownPartition · InvalidTopic
    │   ├── InvalidConfig · InvalidRecord · RecordTooLarge · SchemaMismatch
    │   ├── OffsetOutOfRange          the position is not in the log, or no longer
    │   ├── UnknownPin                the pin was released or expired
    │   ├── InvalidTxnState           the call does not fit the transaction's state
    │   ├── KeyInSeveralPartitions    several partitions of a store have the key
    │   ├── InternalTopicLost         an app's changelog or repartition topic was deleted; reset it
    │   ├── MoveUnfinished            a move to this log is not finished; run it again
    │   ├── NotInTask                 a store or topic used outside a running handler
    │   ├── Unauthenticated           a remote log requires a (different) token
    │   ├── NotAuthorized             the token lacks a right; use another one
    │   └── MissingDependency         an optional package, or Java, is not installed
    ├── Fenced                    another instance has replaced this client; reopen
    │   └── ProducerFenced · MemberFenced
    ├── TaskFailed                a handler raised; fix it or its record, then run again
    ├── TransactionAborted        roll back to the last commit, then continue
    │   ├── RebalanceInProgress       no error: the group was rebalanced meanwhile
    │   └── OutOfOrderSequence        the log lacks records that were sent before these
    ├── OutOfMemory               memory limit reached; commit less at a time, or raise it
    ├── StorageFailed             a disk or file system error; fix it, then reopen
    │   ├── DiskFull · TooManyFiles   nothing happened; make room, then try again
    │   ├── PartitionPoisoned         an earlier write failed; the partition is read-only
    │   ├── UntrustedFolder           others own or may write it; chmod, or STRANDLINE_TRUST=1
    │   ├── FolderLost                the folder was moved or removed while in use; reopen
    │   └── LogLocked                 another process owns the folder
    └── CorruptLog                files differ from what was written; `strandline repair`
        └── FutureFormat              written by a later version; upgrade

Foreign exceptions (OSError, Arrow's, RocksDB's) are translated where they enter.
"""

from __future__ import annotations

import errno
import os
import resource

import msgspec

from strandline.changelog.printable import printable


class StrandlineError(Exception):
    """Base of every error that Strandline raises on purpose.

    Its text has no characters that a terminal would act on: it may contain keys, values, names and
    the texts of other errors. `args` has the text as it was given.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class Retriable(StrandlineError):
    """The call failed for now, and the same call may succeed later."""


class CoordinatorLoading(Retriable):
    """The offsets or transactions are still being read from the log."""


class OwnerUnavailable(Retriable):
    """The process that owns the log folder is gone, or does not answer."""

    waited: float | None = None
    """Seconds spent on all attempts of the call; None unless it failed because time ran out."""

    def __str__(self) -> str:
        said = super().__str__()
        return said if self.waited is None else f"{said} (waited {self.waited:.1f} s)"


class RegistryUnavailable(Retriable):
    """The schema registry is needed, but cannot be reached or reports an error."""


class QuotaExceeded(Retriable):
    """A client has reached its limit of data in flight; wait for its calls, or send less."""


class RequestTimedOut(Retriable):
    """No answer came within the deadline."""


class InvalidRequest(StrandlineError):
    """The call was rejected without effect; change the call or its data."""


class UnknownTopic(InvalidRequest):
    """No topic with this name (or topic id) exists."""


class TopicExists(InvalidRequest):
    """A topic with this name exists already."""


class UnknownPartition(InvalidRequest):
    """The topic has no partition with this number."""


class InvalidTopic(InvalidRequest):
    """The topic name is not allowed or reserved, or the topic does not support the call."""


class InvalidConfig(InvalidRequest):
    """A setting is unknown, or its value is not allowed."""


class InvalidRecord(InvalidRequest):
    """A record cannot be stored in the topic, or cannot be encoded or decoded."""


class RecordTooLarge(InvalidRecord):
    """A record or batch is larger than the topic's `max.message.bytes`."""


class SchemaMismatch(InvalidRecord):
    """Columns do not fit the topic's schema, or a schema does not extend the current one."""


class OffsetOutOfRange(InvalidRequest):
    """The position is before the log's start or beyond its end."""


class UnknownPin(InvalidRequest):
    """The pin does not exist: it was released, expired, or was never created."""


class InvalidTxnState(InvalidRequest):
    """The call does not fit the transaction's state."""


class KeyInSeveralPartitions(InvalidRequest):
    """Several partitions of a store have the key, and their values cannot be merged."""


class InternalTopicLost(InvalidRequest):
    """A changelog or repartition topic was deleted that the app's committed offsets need.

    Kafka Streams: MissingInternalTopicsException.
    """


class MoveUnfinished(InvalidRequest):
    """A topic is the copy of a move that is not finished; run `strandline move` again."""


class NotInTask(InvalidRequest):
    """A store or a topic was used outside a running handler."""


class Unauthenticated(InvalidRequest):
    """The owner of a remote log requires a token, or does not accept this one."""


class NotAuthorized(InvalidRequest):
    """The client's token lacks the right that a call needs; use a token that has it."""


class MissingDependency(InvalidRequest):
    """An optional package or a Java runtime is needed, but is not installed."""


class Fenced(StrandlineError):
    """Another instance has replaced this one; its uncommitted work is lost."""


class ProducerFenced(Fenced):
    """A newer producer with the same transactional id or a newer epoch exists."""


class MemberFenced(Fenced):
    """A consumer is not (or no longer) the member of its group that owns the partition."""


class TaskFailed(StrandlineError):
    """A task stopped at a record or timer whose handler raised; its changes were rolled back."""


class TransactionAborted(StrandlineError):
    """The transaction was aborted; roll back to the last commit and continue from there."""


class RebalanceInProgress(TransactionAborted):
    """The transaction's group was rebalanced before its member was notified."""


class OutOfOrderSequence(TransactionAborted):
    """A batch's sequence number leaves a gap, so records sent before it were lost."""


class OutOfMemory(StrandlineError, MemoryError):
    """The process cannot allocate the memory it needs."""


class StorageFailed(StrandlineError):
    """The file system refused an operation."""


class DiskFull(StorageFailed):
    """The device is full or a quota is used up. The operation was undone."""


class TooManyFiles(StorageFailed):
    """The limit of open files, of the process or the machine, is reached. Nothing was changed."""


NO_EFFECT_ERRORS = (DiskFull, TooManyFiles)
"""Storage errors of operations that had no effect, so that the caller may retry."""


class PartitionPoisoned(StorageFailed):
    """An earlier write or fsync of this partition failed; it is read-only until reopened."""


class FolderLost(StorageFailed):
    """The path no longer leads to the folder or lock that was opened; nothing is written there."""


class UntrustedFolder(StorageFailed):
    """A folder or a file in it belongs to another user, or others can write it."""


class LogLocked(StorageFailed):
    """Another process owns the log folder."""


class CorruptLog(StrandlineError):
    """A file's content differs from what was written to it."""


REPAIR = "run `strandline repair`"
"""Advice in messages about a damaged log. The command first shows what it would do and lose."""


def cause(error: CorruptLog) -> str:
    """Return an error's message without the advice, for a message with advice of its own.

    >>> cause(CorruptLog(f"x.log: the frame at byte 0 is cut off; {REPAIR}"))
    'x.log: the frame at byte 0 is cut off'
    """
    return str(error).removesuffix(f"; {REPAIR}")


class FutureFormat(CorruptLog):
    """A file or folder was written by a later version of Strandline."""


UNREADABLE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
"""Exceptions that decoders raise for malformed bytes: nested too deep, too large, not text."""


def from_os_error(error: OSError, doing: str, path: str) -> StorageFailed:
    """Translate an OSError met while `doing` something, other than an fsync, to `path`.

    >>> from_os_error(OSError(28, "No space left on device"), "append to", "x.log")
    DiskFull('cannot append to x.log: No space left on device (... free); make room and try again')
    """
    what = f"cannot {doing} {path}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull(f"{what} ({_room(error.errno, path)}); make room and try again")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return TooManyFiles(f"{what} ({files_allowed()}); {MORE_FILES}")
    if error.errno in _WAYS_OUT:
        return StorageFailed(f"{what}; {_WAYS_OUT[error.errno]}")
    return StorageFailed(what)


def from_failed_sync(error: OSError, path: str) -> StorageFailed:
    """Translate the OSError of an fsync. Return StorageFailed whatever the cause.

    After a failed fsync the content of the disk is unknown. Even without space on the device it
    is no DiskFull, because a second fsync may succeed although the first one lost data.
    """
    return StorageFailed(
        f"cannot fsync {path}: {error.strerror or error}; the last writes may not be on the disk. "
        f"See the system's log for the cause, fix it, then open the log again"
    )


def out_of_memory(error: MemoryError, doing: str) -> OutOfMemory:
    """Translate a MemoryError, Python's or Arrow's, met while `doing` something.

    >>> out_of_memory(MemoryError(), "read 9 bytes of x.log")
    OutOfMemory("no memory to read 9 bytes of x.log; raise this process's limit, or let it ...")
    """
    said = f" ({error})" if str(error) else ""
    return OutOfMemory(
        f"no memory to {doing}{said}; raise this process's limit, or let it take less at a time "
        f"(memory= and commit_records= of an app, max.message.bytes of a topic)"
    )


def files_allowed() -> str:
    """Return the soft and hard limit of open files of this process, for messages."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"limit {soft}, at most {hard}"


MORE_FILES = "raise it with `ulimit -n` (LimitNOFILE= of systemd) and start again"

_MACHINE = "the device failed: see the system's log, fix or replace it, then open the log again"
_PERMISSION = "the folder and its files must belong to the user who runs this, and be writable"
_WAYS_OUT = {
    errno.EIO: _MACHINE,
    errno.EROFS: "the file system is read-only; mount it writable, then open the log again",
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.ENOENT: "it was removed or moved while in use; put it back, then open the log again",
    errno.ELOOP: "it is a symbolic link, and none is followed in there; put what it leads to in its place",
    errno.ENOTDIR: "a file is where a folder should be; choose another folder",
}


def _room(number: int, path: str) -> str:
    """Return the free space (or size limit) for a file at `path`, for messages."""
    if number == errno.EFBIG:
        return f"files may have {resource.getrlimit(resource.RLIMIT_FSIZE)[0]} bytes, `ulimit -f`"
    folder = os.path.abspath(path)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    found = os.statvfs(folder)
    return f"{found.f_bavail * found.f_frsize / (1 << 20):.1f} MiB free"
