"""Translation of errors of librdkafka and Kafka to those of `changelog.errors`.

A caller decides by the type how to continue, so the table has only codes for which it is certain.
Codes of Retriable and InvalidRequest guarantee that a repeated call does nothing twice. Codes that
are not in the table are Retriable if librdkafka marks them as such.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from strandline.changelog.errors import (
    CoordinatorLoading,
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    InvalidTopic,
    InvalidTxnState,
    MemberFenced,
    OffsetOutOfRange,
    OutOfOrderSequence,
    OwnerUnavailable,
    ProducerFenced,
    RebalanceInProgress,
    RecordTooLarge,
    RequestTimedOut,
    Retriable,
    StorageFailed,
    StrandlineError,
    TopicExists,
    TransactionAborted,
    Unauthenticated,
    UnknownPartition,
    UnknownTopic,
)
from strandline.changelog.kafka.client_logs import plain

_TYPES: tuple[tuple[type[StrandlineError], str, str], ...] = (
    (
        UnknownTopic,
        "UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC UNKNOWN_TOPIC_ID",
        "check the spelling, or create it if there shall be one",
    ),
    (UnknownPartition, "_UNKNOWN_PARTITION", "the topic has fewer partitions"),
    (TopicExists, "TOPIC_ALREADY_EXISTS", "choose another name, or use that topic"),
    (InvalidTopic, "TOPIC_EXCEPTION", "use letters, digits, '.', '_' and '-'"),
    (
        InvalidConfig,
        (
            "INVALID_CONFIG INVALID_PARTITIONS INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT "
            "INVALID_TRANSACTION_TIMEOUT INVALID_GROUP_ID INVALID_SESSION_TIMEOUT"
        ),
        "change the setting",
    ),
    (
        InvalidConfig,
        "INCONSISTENT_GROUP_PROTOCOL",
        "members of another kind are in the group, with another client or assignor; stop them first",
    ),
    (
        RecordTooLarge,
        "MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE",
        "send smaller batches, or raise the topic's max.message.bytes",
    ),
    (
        InvalidRecord,
        "INVALID_RECORD INVALID_MSG INVALID_TIMESTAMP",
        (
            "a compacted topic needs keys; a time must be within message.timestamp.before.max.ms and "
            "after.max.ms"
        ),
    ),
    (
        OffsetOutOfRange,
        "OFFSET_OUT_OF_RANGE _AUTO_OFFSET_RESET",
        "seek to the beginning or the end",
    ),
    (
        ProducerFenced,
        "_FATAL _FENCED PRODUCER_FENCED INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING",
        (
            "another producer with the same transactional id took over, or the transaction was open "
            "for longer than transaction.timeout.ms"
        ),
    ),
    (
        MemberFenced,
        (
            "UNKNOWN_MEMBER_ID FENCED_INSTANCE_ID FENCED_MEMBER_EPOCH STALE_MEMBER_EPOCH "
            "NON_EMPTY_GROUP"
        ),
        "the group has members, and only they commit for it",
    ),
    (
        MemberFenced,
        "_MAX_POLL_EXCEEDED",
        "it released nothing in time, or its process was suspended; raise session_timeout_ms",
    ),
    (
        CoordinatorLoading,
        "COORDINATOR_LOAD_IN_PROGRESS UNSTABLE_OFFSET_COMMIT REBALANCE_IN_PROGRESS",
        "ask again in a moment",
    ),
    (
        Unauthenticated,
        (
            "_AUTHENTICATION _SSL SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM "
            "TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED "
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
        ),
        "set security.protocol, sasl.… and ssl.… in the URL, and have the rights granted",
    ),
    (InvalidTxnState, "INVALID_TXN_STATE _STATE", "abort, and begin again"),
    (
        OutOfOrderSequence,
        "OUT_OF_ORDER_SEQUENCE_NUMBER UNKNOWN_PRODUCER_ID",
        "records sent before these are lost; begin with a new producer",
    ),
    (RebalanceInProgress, "ILLEGAL_GENERATION", "abort, and begin again when the group is at rest"),
    (
        TransactionAborted,
        "TRANSACTION_ABORTABLE",
        "abort, and begin again",
    ),
    (StorageFailed, "KAFKA_STORAGE_ERROR", "see the logs of the brokers"),
    (
        OwnerUnavailable,
        (
            "_TRANSPORT _ALL_BROKERS_DOWN _DESTROY_BROKER _NOENT _RESOLVE _WAIT_COORD BROKER_NOT_AVAILABLE LEADER_NOT_AVAILABLE "
            "NOT_LEADER_FOR_PARTITION COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR NOT_CONTROLLER "
            "NETWORK_EXCEPTION OFFSET_NOT_AVAILABLE UNKNOWN_LEADER_EPOCH FENCED_LEADER_EPOCH"
        ),
        "check the address and that the brokers run",
    ),
    (
        RequestTimedOut,
        (
            "_TIMED_OUT _MSG_TIMED_OUT _TIMED_OUT_QUEUE _PARTIAL REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS "
            "NOT_ENOUGH_REPLICAS_AFTER_APPEND"
        ),
        "check that the brokers run and keep up",
    ),
    (
        InvalidRequest,
        (
            "OFFSET_METADATA_TOO_LARGE POLICY_VIOLATION UNSUPPORTED_VERSION INVALID_REQUEST "
            "_INVALID_ARG _UNSUPPORTED_FEATURE"
        ),
        "the cluster's settings or version do not allow it",
    ),
)

_BY_CODE = {
    getattr(KafkaError, name): (kind, fix)
    for kind, names, fix in _TYPES
    for name in names.split()
    if hasattr(KafkaError, name)  # an older confluent-kafka has fewer
}


def error_of(raised: BaseException) -> KafkaError | None:
    """Return the KafkaError in an exception; None if there is none."""
    inner = raised.args[0] if isinstance(raised, KafkaException) and raised.args else None
    return inner if isinstance(inner, KafkaError) else None


_SILENCE = (OwnerUnavailable, RequestTimedOut)
"""Errors caused by a connection, whose messages lack the cause."""


def failure(error: KafkaError, where: str, cause: str = "") -> StrandlineError:
    """Return the StrandlineError for `error`.

    `where` is the cluster and the activity. `cause` is the latest problem with a broker, added to
    errors whose messages lack a cause.

    >>> failure(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS), "kafka://h: creating topic 't'")
    TopicExists("kafka://h: creating topic 't': ...; choose another name, or use that topic")
    """
    said = error.str() or error.name()
    kind, fix = _BY_CODE.get(error.code(), (None, ""))
    if kind in _SILENCE and cause and cause not in plain(said):
        said = f"{said} ({cause})"
    if kind is not None:
        return kind(f"{where}: {said}; {fix}")
    if error.retriable():
        return Retriable(f"{where}: {said} ({error.name()}); try again")
    return StrandlineError(f"{where}: {said} ({error.name()}); see the logs of the brokers")


def failure_of(raised: Exception, where: str, cause: str = "") -> StrandlineError:
    """Return the StrandlineError for an exception of confluent-kafka."""
    if isinstance(raised, StrandlineError):
        return raised
    error = error_of(raised)
    if error is not None:
        return failure(error, where, cause)
    if isinstance(raised, (ValueError, TypeError)):
        return InvalidRequest(f"{where}: {raised}")
    return StrandlineError(f"{where}: {raised} ({type(raised).__name__})")


def is_fatal(raised: BaseException) -> bool:
    """Return True for a fatal error, after which a producer cannot be used."""
    error = error_of(raised)
    return error is not None and error.fatal()


def asks_for_abort(raised: BaseException) -> bool:
    """Return True for an error after which a transaction must be aborted."""
    error = error_of(raised)
    return error is not None and error.txn_requires_abort()
