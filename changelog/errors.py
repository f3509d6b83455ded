"""The errors of Strandline: few types, split by what the caller does next.

    StrandlineError
    ├── Retriable                 nothing happened; try again (later)
    │   ├── CoordinatorLoading        offsets or transactions are still being read
    │   ├── OwnerUnavailable          the process that owns the log is gone or stalled
    │   ├── RegistryUnavailable       the schema registry does not answer
    │   └── RequestTimedOut           no answer within the deadline
    ├── InvalidRequest            nothing happened; fix the call or its data
    │   ├── UnknownTopic · TopicExists · UnknownPartition · InvalidTopic
    │   ├── InvalidConfig · InvalidRecord · RecordTooLarge · SchemaMismatch
    │   ├── OffsetOutOfRange          the position is not in the log (any more)
    │   ├── UnknownPin                the pin was released, or not used for too long
    │   ├── InvalidTxnState           the call does not fit the transaction's state
    │   ├── NotInTask                 a store or topic used outside a running handler
    │   ├── Unauthenticated           a remote log asks for a (different) token
    │   ├── NotAuthorized             the token lacks a right; use another one
    │   └── MissingDependency         an optional package, or Java, is not there
    ├── Fenced                    someone else has taken this client's place; reopen
    │   └── ProducerFenced · MemberFenced
    ├── TaskFailed                a handler raised; mend it or its record, then run again
    ├── TransactionAborted        roll back to the last commit, then go on
    │   ├── RebalanceInProgress             nothing is wrong: its group was shared out anew meanwhile
    │   └── OutOfOrderSequence        the log misses records sent before these
    ├── OutOfMemory               this process may take no more; commit less at a time, or raise the limit
    ├── StorageFailed             the disk said no; mend it, then reopen
    │   ├── DiskFull · TooManyFiles   nothing happened; make room, then try again
    │   ├── PartitionPoisoned
    │   ├── UntrustedFolder           others own or may write it; chmod, or STRANDLINE_TRUST=1
    │   ├── FolderLost                the folder was moved or removed while in use; open it again
    │   └── LogLocked                 another process owns the folder
    └── CorruptLog                what is on disk is not what was written; `strandline repair`
        └── FutureFormat              written by a later version; upgrade

Foreign exceptions (OSError, Arrow's, RocksDB's) are translated where they enter.
"""

from __future__ import annotations

import errno
import os
import resource

import msgspec


class StrandlineError(Exception):
    """Base of every error that Strandline raises on purpose."""


class Retriable(StrandlineError):
    """Nothing happened, and the same call may succeed later."""


class CoordinatorLoading(Retriable):
    """The offsets or transactions are still being read from the log."""


class OwnerUnavailable(Retriable):
    """The process that owns the log folder is gone, or does not answer."""

    waited: float | None = None
    """Seconds that went by in vain, all attempts of the call together; None if it did not end for that."""

    def __str__(self) -> str:
        said = super().__str__()
        return said if self.waited is None else f"{said} (waited {self.waited:.1f} s)"


class RegistryUnavailable(Retriable):
    """The schema registry is needed, and is not to be reached or not well."""


class QuotaExceeded(Retriable):
    """A client has as much in flight as it may; wait for its calls, or make smaller ones."""


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


class UnknownPin(InvalidRequest):
    """No such pin: it was released, or not used for too long, or never made."""


class InvalidTxnState(InvalidRequest):
    """The call does not fit the state that the transaction is in."""


class KeyInSeveralPartitions(InvalidRequest):
    """Several partitions of a store have the key, and what they have cannot be merged into one value."""


class NotInTask(InvalidRequest):
    """A store or a topic was used outside a running handler."""


class Unauthenticated(InvalidRequest):
    """The owner of a remote log asks for a token, or does not accept this one."""


class NotAuthorized(InvalidRequest):
    """The client's token does not have the right that a call needs; use a token that has it."""


class MissingDependency(InvalidRequest):
    """An optional package, or a Java runtime, is needed and missing."""


class Fenced(StrandlineError):
    """Another instance has taken this one's place; what it had not committed is void."""


class ProducerFenced(Fenced):
    """A newer producer with the same transactional id, or a newer epoch, exists."""


class MemberFenced(Fenced):
    """A consumer is not (or no longer) the member of its group that holds the partition."""


class TaskFailed(StrandlineError):
    """A task has stopped at a record (or timer) whose handler raised; nothing of that was kept."""


class TransactionAborted(StrandlineError):
    """The transaction is gone; roll back to the last commit and go on from there."""


class RebalanceInProgress(TransactionAborted):
    """The transaction's group was shared out anew, and its member had not heard of it yet."""


class OutOfOrderSequence(TransactionAborted):
    """A batch's sequence leaves a gap, so records sent before it were lost."""


class OutOfMemory(StrandlineError, MemoryError):
    """This process may take no more memory."""


class StorageFailed(StrandlineError):
    """The file system refused an operation."""


class DiskFull(StorageFailed):
    """There is no space left on the device, or a quota is used up. What was begun was undone."""


class TooManyFiles(StorageFailed):
    """This process, or the machine, may not open another file. What was begun was undone."""


UNDONE = (DiskFull, TooManyFiles)
"""Of errors of the disk those after which everything is as it was, so that one may try again."""


class PartitionPoisoned(StorageFailed):
    """An earlier write or fsync of this partition failed; it is read-only until reopened."""


class FolderLost(StorageFailed):
    """The folder at the path, or the lock in it, is not the one that was opened; it is left alone."""


class UntrustedFolder(StorageFailed):
    """A folder, or a file in it, belongs to another user or can be written by others."""


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


UNREADABLE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
"""What decoders raise at bytes that are not what they should be: too deep, too large, no text."""


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
    """Translate the OSError of an fsync: whatever its cause, nobody knows what is on the disk.

    So it is no DiskFull even if there is no room: trying again would not tell.
    """
    return StorageFailed(
        f"cannot fsync {path}: {error.strerror or error}; what was written last may not be on the "
        f"disk. See the system's log for the cause, mend it, then open the log again"
    )


def out_of_memory(error: MemoryError, doing: str) -> OutOfMemory:
    """Translate a MemoryError, Python's or Arrow's, met while `doing` something.

    >>> out_of_memory(MemoryError(), "read 9 bytes of x.log")
    OutOfMemory("no memory to read 9 bytes of x.log; raise this process's limit, or let it ...")
    """
    said = f" ({error})" if str(error) else ""
    return OutOfMemory(
        f"no memory to {doing}{said}; raise this process's limit, or let it take less at a time "
        f"(fetch_bytes, commit_records, max.message.bytes)"
    )


def files_allowed() -> str:
    """How many files this process may open, for messages."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"limit {soft}, at most {hard}"


MORE_FILES = "raise it with `ulimit -n` (LimitNOFILE= of systemd) and start again"

_MACHINE = "the device failed: see the system's log, mend or replace it, then open the log again"
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
    """How much room there is where `path` is."""
    if number == errno.EFBIG:
        return f"files may have {resource.getrlimit(resource.RLIMIT_FSIZE)[0]} bytes, `ulimit -f`"
    folder = os.path.abspath(path)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    found = os.statvfs(folder)
    return f"{found.f_bavail * found.f_frsize / (1 << 20):.1f} MiB free"
