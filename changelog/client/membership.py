"""A consumer's place in its group.

A thread beats: it tells the owner what the consumer holds, and learns what it may hold. The
consumer acts on that in its own thread, between two polls, so nothing is taken from it in the
middle of its work:

    revoked    what it may no longer hold: it commits, lets go, and says so
    assigned   what it may hold in addition
    lost       it is no member any more: whatever it did since its last commit is void

It is lost if the owner says so, if no beat was answered for a session timeout, or if it did not
poll for `max_poll_interval_ms`: then the others are given its partitions.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Collection
from pathlib import Path

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import MemberFenced, Retriable, StrandlineError
from strandline.changelog.groups import Assignment, GroupMember, Subscription
from strandline.changelog.records import TopicPartition

BEATS_PER_SESSION = 3
"""Kafka's rule for heartbeat.interval.ms: a third of the session timeout at the most."""
LONGEST_BEAT_S = 1.0
PAUSE_S = 0.05


class Membership:
    """One consumer in one group, from `join` to `leave`. Raises what the broker does."""

    def __init__(
        self,
        broker: Broker,
        group: str,
        subscription: Subscription,
        clock: Clock,
        *,
        max_poll_interval_ms: int,
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._is_static = subscription.instance is not None
        self._session_s = subscription.session_timeout_ms / 1000
        self._max_poll_s = max_poll_interval_ms / 1000
        self._lock = threading.Lock()
        self._calls = 0
        self._holds: frozenset[TopicPartition] = frozenset()
        self._grant = Assignment(0, ())
        self._may_hold: frozenset[TopicPartition] = frozenset()
        self._standbys: frozenset[TopicPartition] = frozenset()
        self._answered = self._asked = self._polled = clock.monotonic()
        self._failure: StrandlineError | None = None
        self._stop = threading.Event()
        self.member: GroupMember = broker.join_group(group, subscription)
        self.beat(0.0)  # what nobody holds is its own at once
        # It holds on to nothing of the consumer: a forgotten one lets it end.
        threading.Thread(
            target=_beat_until_stopped,
            args=(weakref.ref(self),),
            name="strandline-group",
            daemon=True,
        ).start()

    def allowed(self) -> frozenset[TopicPartition]:
        """What the consumer may hold. Raises MemberFenced if it is lost; call it at each poll."""
        with self._lock:
            self._polled = self._clock.monotonic()
            if self._failure is not None:
                raise self._failure
            return self._may_hold

    def standbys(self) -> frozenset[TopicPartition]:
        """What it is to keep copies of."""
        with self._lock:
            return self._standbys

    def holds(self, partitions: Collection[TopicPartition]) -> None:
        """Tell the owner what the consumer holds from now on."""
        with self._lock:
            self._holds = frozenset(partitions)
        self.beat(0.0)

    def is_certain(self) -> bool:
        """Whether nobody else can hold what it holds: it was heard of within its session timeout."""
        with self._lock:
            silent = self._clock.monotonic() - self._asked
            return self._failure is None and silent < self._session_s

    def beat(self, timeout: float) -> bool:
        """Say what is held; whether the answer, which comes within `timeout` seconds, is a new one."""
        with self._lock:
            self._calls += 1
            call, seen, held = self._calls, self._grant.number, self._holds
            asked = self._clock.monotonic()
        try:
            answer = self._broker.beat_group(self.member, call, seen, held, timeout=timeout)
        except Retriable:
            self._check_silence()
            raise
        except StrandlineError as error:
            self._fail(error)
            return False
        with self._lock:
            self._answered = self._clock.monotonic()
            self._asked = max(self._asked, asked)
            if is_new := answer.number > self._grant.number:
                self._grant, self._may_hold = answer, frozenset(answer.partitions)
                self._standbys = frozenset(answer.standbys)
        return is_new

    def leave(self) -> None:
        """Beat no more, and give up everything, unless it is static and will be back.

        Harmless when repeated.
        """
        if not self._stop.is_set():
            self._stop.set()
            if not self._is_static and self._failure is None:
                self._broker.leave_group(self.member)

    @property
    def over(self) -> bool:
        """Whether there is nothing to beat for."""
        return self._stop.is_set() or self._failure is not None

    def go_on(self) -> None:
        """One beat of the thread's, or a pause."""
        if self._clock.monotonic() - self._polled > self._max_poll_s:
            self._fail(
                MemberFenced(
                    f"{self.member.member_id} did not poll for max.poll.interval.ms = "
                    f"{self._max_poll_s * 1000:g} and has left group {self.member.group!r}; "
                    f"poll more often, or raise it"
                )
            )
            self._broker.leave_group(self.member)
            return
        is_new = False
        with contextlib.suppress(Retriable):
            is_new = self.beat(min(self._session_s / BEATS_PER_SESSION, LONGEST_BEAT_S))
        if not is_new:  # an owner that does not wait must not be asked without a pause
            self._stop.wait(PAUSE_S)

    def _check_silence(self) -> None:
        if self._clock.monotonic() - self._answered > self._session_s:
            self._fail(
                MemberFenced(
                    f"{self.member.member_id} had no answer for its session timeout of "
                    f"{self._session_s:g} s; others may hold what it held"
                )
            )

    def _fail(self, error: StrandlineError) -> None:
        with self._lock:
            self._failure = self._failure or error


def program() -> str:
    """Who this is, for those who look at a group: the program and its process id."""
    return f"{Path(sys.argv[0]).name or 'python'}-{os.getpid()}"


def _beat_until_stopped(reference: weakref.ref[Membership]) -> None:
    while (membership := reference()) is not None and not membership.over:
        try:
            membership.go_on()
        except StrandlineError as error:
            membership._fail(error)
        del membership
