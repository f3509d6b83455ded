"""A connection to the cluster: what all parts share, and the calls of its admin client."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from strandline.changelog.clock import Clock
from strandline.changelog.errors import (
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
"""How long a call waits for its answer."""
ATTEMPT_S = 2.0
"""How long a question waits at a broker; then whom to ask is found out anew, as it may be dead."""
MEET_S = 13.0
"""How long somebody is looked for who knows of all others: he may be dead, and be replaced (9 s)."""
REFRESH_MS = 1_000
"""How soon an admin client, which waits for the controller that it knows, learns that it is another."""
ANSWER_S = 20.0
"""How long a question is repeated: longer than brokers take to replace one that is dead (9 s)."""
PAUSE_S = 0.01
SLICE_S = 0.1
"""How long Python is away in one call: so long Ctrl-C has to wait."""
log = logging.getLogger("strandline.kafka")


class KafkaConnection:
    """One cluster, with an admin client on it. Raises OwnerUnavailable if nobody answers."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self.cluster = cluster
        self.clock = clock
        self.closed = False
        self._pid = os.getpid()
        self._heard = ClientLogs(cluster.name, log, clock)
        self._trouble: StrandlineError | None = None
        """What went wrong last in the background."""
        with self.translated("connecting"):
            self.admin = self.client(
                AdminClient, {"topic.metadata.refresh.interval.ms": REFRESH_MS}
            )
        try:
            self.cluster_id = self._meet()
            """Which cluster it is, as its brokers say; empty if they do not."""
        except (RequestTimedOut, OwnerUnavailable) as error:
            raise OwnerUnavailable(
                f"{self.where('no broker answers')}: {self.cause or error}; check the address and that "
                f"the brokers run"
            ) from error
        self._heard.met = True

    def _meet(self) -> str:
        """Return the cluster's id when somebody has answered. Raises Unauthenticated as soon as one is refused."""
        begun = self.clock.monotonic()
        while True:
            answer = self.admin.describe_cluster(request_timeout=ATTEMPT_S)
            while not answer.done():
                self.admin.poll(SLICE_S)
                if isinstance(self._trouble, Unauthenticated):
                    raise self._trouble
            try:
                return str(self.result(answer, "asking who is there").cluster_id or "")
            except Retriable:
                if self.clock.monotonic() - begun > MEET_S:
                    raise

    def client(self, kind: Callable[..., T], properties: Mapping[str, Any]) -> T:
        """A client of librdkafka's with the cluster's properties and these. Raises InvalidConfig."""
        secrets = self.cluster.secrets
        given = {**self.cluster.properties, **{n: value.reveal() for n, value in secrets.items()}}
        try:
            return kind({**given, "error_cb": self._note, **properties}, logger=self._heard)
        except KafkaException as error:
            said = masked(error.args[0].str(), secrets.values())
            raise InvalidConfig(f"{self.cluster.name}: {said}") from None

    @in_callback
    def _note(self, error: KafkaError) -> None:
        """What goes on in the background: the calls that it concerns are told as well."""
        self._heard.event(error)
        self._trouble = failure(error, self.where("connecting"))

    def answered(self) -> None:
        """Note that a broker has, outside of the admin client's calls."""
        self._heard.answered()

    @property
    def cause(self) -> str:
        """What connections were in trouble with just now; empty if they were not."""
        return self._heard.cause

    def failure(self, error: KafkaError, doing: str) -> StrandlineError:
        """What `error` is, with the trouble that brokers are in."""
        return failure(error, self.where(doing), self.cause)

    def failure_of(self, raised: Exception, doing: str) -> StrandlineError:
        """The same of an exception that librdkafka's Python side raises."""
        return failure_of(raised, self.where(doing), self.cause)

    def where(self, doing: str) -> str:
        """The beginning of a message."""
        return f"{self.cluster.name}: {doing}"

    def check_open(self) -> None:
        """Raise OwnerUnavailable once it is closed, and in a process that was forked from this one."""
        if os.getpid() != self._pid:
            raise OwnerUnavailable(
                "this process was forked, and the threads that talk to the cluster were not; open "
                "the log again with changelog.open"
            )
        if self.closed:
            raise OwnerUnavailable("this log is closed; open it again with changelog.open")

    @contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """librdkafka's errors leave this block as ours."""
        try:
            yield
        except (KafkaException, ValueError, TypeError) as error:
            raise self.failure_of(error, doing) from error

    def result(self, future: Future[T], doing: str) -> T:
        """What an admin call comes to."""
        with self.translated(doing):
            result = future.result(DEADLINE_S * 2)
        self._heard.answered()
        return result

    def results(self, futures: Mapping[K, Future[T]], doing: str) -> dict[K, T]:
        """What several come to; the first error is raised."""
        return {key: self.result(one, f"{doing} {_named(key)}") for key, one in futures.items()}

    def until(
        self,
        call: Callable[[], T | None],
        doing: str,
        again: type[Retriable] | tuple[type[Retriable], ...] = Retriable,
    ) -> T:
        """What `call` gives at last, asked again while it gives None or raises `again`.

        Leaders and coordinators move, and are not there yet when something is new. Raises
        RequestTimedOut, from the last error.
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
            self.admin.poll(0)  # for what it has to say of its connections
            pause()
        why = str(last or "no answer")
        why += f"; {self.cause}" if self.cause not in why else ""
        raise RequestTimedOut(
            f"{self.where(doing)}: not done within {ANSWER_S:g} s ({why})"
        ) from last


def _named(key: Any) -> str:
    """A key of the admin client's answers, for messages."""
    topic = getattr(key, "topic", None)
    return str(getattr(key, "name", key)) if topic is None else f"{topic}-{key.partition}"


def pause() -> None:
    """Let the cluster get on with it, between two questions."""
    threading.Event().wait(PAUSE_S)
