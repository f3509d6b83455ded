"""The connection to a cluster: shared state of all parts, and calls of the admin client."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from strandline.changelog.clock import Clock
from strandline.changelog.errors import (
    Fenced,
    InvalidConfig,
    OwnerUnavailable,
    RequestTimedOut,
    Retriable,
    StrandlineError,
    Unauthenticated,
)
from strandline.changelog.kafka.address import Cluster
from strandline.changelog.kafka.callbacks import in_callback
from strandline.changelog.kafka.client_logs import ClientLogs
from strandline.changelog.kafka.failures import failure, failure_of
from strandline.changelog.secret import masked

T = TypeVar("T")
K = TypeVar("K")

DEADLINE_S = 10.0
"""Seconds that a call waits for its answer."""
ATTEMPT_S = 2.0
"""Seconds that one attempt of a query waits for a broker. The next attempt looks up the responsible
broker again, because the first one may be dead."""
MEET_S = 13.0
"""Seconds to wait for a description of the cluster when connecting. The broker that can give one
may be dead, and be replaced (9 s)."""
REFRESH_MS = 1_000
"""Milliseconds after which an admin client notices that the cluster has another controller."""
ANSWER_S = 20.0
"""Seconds for which a query is repeated: longer than brokers take to replace a dead one (9 s)."""
PAUSE_S = 0.01
"""Seconds between two attempts."""
METADATA_BYTES = 4_096
"""Default of the setting `offset.metadata.max.bytes`."""
SLICE_S = 0.1
"""Maximum seconds in one call of librdkafka, because Ctrl-C is handled only after the call."""
log = logging.getLogger("strandline.kafka")


class KafkaConnection:
    """A cluster with an admin client. The constructor raises OwnerUnavailable."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self.cluster = cluster
        self.clock = clock
        self.closed = False
        self._pid = os.getpid()
        self._client_logs = ClientLogs(cluster.name, log, clock)
        self._last_error: StrandlineError | None = None
        """Last error that a client reported in the background."""
        self._metadata_bytes: int | None = None
        """Result of `metadata_bytes`; None before it is known."""
        with self.translated("connecting"):
            self.admin = self.client(
                AdminClient, {"topic.metadata.refresh.interval.ms": REFRESH_MS}
            )
        try:
            self.cluster_id = self._wait_for_cluster()
            """Id of the cluster; empty if its brokers do not report one."""
        except (RequestTimedOut, OwnerUnavailable) as error:
            raise OwnerUnavailable(
                f"{self.where('no broker answers')}: {self.cause or error}; check the address and that "
                f"the brokers run"
            ) from error
        self._client_logs.met = True

    def _wait_for_cluster(self) -> str:
        """Wait for a first answer and return the cluster's id.

        Raises Unauthenticated as soon as a broker rejects the credentials.
        """
        begun = self.clock.monotonic()
        while True:
            answer = self.admin.describe_cluster(request_timeout=ATTEMPT_S)
            while not answer.done():
                self.admin.poll(SLICE_S)
                if isinstance(self._last_error, Unauthenticated):
                    raise self._last_error
            try:
                return str(self.result(answer, "asking who is there").cluster_id or "")
            except Retriable:
                if self.clock.monotonic() - begun > MEET_S:
                    raise

    def metadata_limit_bytes(self) -> int:
        """Return the size of metadata from which on the cluster refuses an offset.

        The cluster is asked once. Kafka's default is returned if its settings cannot be read.
        """
        if self._metadata_bytes is None:
            try:
                self._metadata_bytes = self._configured_metadata_bytes()
            except Retriable:
                return METADATA_BYTES
            except (StrandlineError, LookupError, TypeError, ValueError):
                self._metadata_bytes = METADATA_BYTES
        return self._metadata_bytes

    def _configured_metadata_bytes(self) -> int:
        doing = "asking for the settings of a broker"
        described = self.admin.describe_cluster(request_timeout=ATTEMPT_S)
        node = str(self.result(described, doing).nodes[0].id)
        asked = [ConfigResource(ResourceType.BROKER, node)]
        [answer] = self.admin.describe_configs(asked, request_timeout=ATTEMPT_S).values()
        return int(self.result(answer, doing)["offset.metadata.max.bytes"].value)

    def client(self, kind: Callable[..., T], properties: Mapping[str, Any]) -> T:
        """Return a client of librdkafka with the cluster's properties and these.

        Raises InvalidConfig.
        """
        secrets = self.cluster.secrets
        given = {**self.cluster.properties, **{n: value.reveal() for n, value in secrets.items()}}
        try:
            return kind(
                {**given, "error_cb": self._on_error, **properties}, logger=self._client_logs
            )
        except KafkaException as error:
            said = masked(error.args[0].str(), secrets.values())
            raise InvalidConfig(f"{self.cluster.name}: {said}") from None

    @in_callback
    def _on_error(self, error: KafkaError) -> None:
        """Handle an error in the background. Calls that it affects raise an error of their own."""
        self._client_logs.event(error)
        self._last_error = failure(error, self.where("connecting"))

    def answered(self) -> None:
        """Record that a broker has answered, for clients other than the admin client."""
        self._client_logs.answered()

    @property
    def cause(self) -> str:
        """Latest problem with a broker; empty if there was none recently."""
        return self._client_logs.cause

    def failure(self, error: KafkaError, doing: str) -> StrandlineError:
        """Return the StrandlineError for `error`, with the latest problem of brokers as cause."""
        return failure(error, self.where(doing), self.cause)

    def failure_of(self, raised: Exception, doing: str) -> StrandlineError:
        """Return the StrandlineError for an exception of confluent-kafka."""
        return failure_of(raised, self.where(doing), self.cause)

    def where(self, doing: str) -> str:
        """Return the beginning of a message: the cluster, and the current activity."""
        return f"{self.cluster.name}: {doing}"

    @property
    def is_foreign(self) -> bool:
        """True in a forked child of the process that connected."""
        return os.getpid() != self._pid

    def check_open(self) -> None:
        """Raise OwnerUnavailable if the connection is closed, Fenced in a forked child."""
        self.check_process()
        if self.closed:
            raise OwnerUnavailable("this log is closed; open it again with changelog.open")

    def check_process(self) -> None:
        """Raise Fenced in a forked child."""
        if self.is_foreign:
            raise Fenced(
                "this process was forked, and the threads that talk to the cluster were not; open "
                "the log again with changelog.open"
            )

    @contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Translate errors of confluent-kafka in a `with` block to StrandlineError."""
        try:
            yield
        except (KafkaException, ValueError, TypeError) as error:
            raise self.failure_of(error, doing) from error

    def result(self, future: Future[T], doing: str) -> T:
        """Wait for an admin call and return its result."""
        with self.translated(doing):
            result = future.result(DEADLINE_S * 2)
        self._client_logs.answered()
        return result

    def results(self, futures: Mapping[K, Future[T]], doing: str) -> dict[K, T]:
        """Wait for several admin calls and return their results, or raise the first error."""
        return {key: self.result(one, f"{doing} {_named(key)}") for key, one in futures.items()}

    def until(
        self,
        call: Callable[[], T | None],
        doing: str,
        again: type[Retriable] | tuple[type[Retriable], ...] = Retriable,
    ) -> T:
        """Repeat `call` while it returns None or raises `again`, and return its result.

        Retries are necessary because leaders and coordinators move, and do not exist yet for a
        new topic or group. Raises RequestTimedOut from the last error.
        """
        deadline = self.clock.monotonic() + ANSWER_S
        last: Retriable | None = None
        while self.clock.monotonic() < deadline:
            try:
                found = call()
            except again as error:
                found, last = None, error
            if found is not None:
                return found
            self.admin.poll(0)  # deliver errors of its connections to `_on_error`
            pause()
        why = str(last or "no answer")
        why += f"; {self.cause}" if self.cause not in why else ""
        raise RequestTimedOut(
            f"{self.where(doing)}: not done within {ANSWER_S:g} s ({why})"
        ) from last


def _named(key: Any) -> str:
    """Return the name of a key of the admin client's results, for messages."""
    topic = getattr(key, "topic", None)
    return str(getattr(key, "name", key)) if topic is None else f"{topic}-{key.partition}"


def pause() -> None:
    """Wait for PAUSE_S between two attempts."""
    threading.Event().wait(PAUSE_S)
