"""Membership of a consumer in its group: heartbeats in a background thread.

A heartbeat reports the partitions that the consumer owns, and returns its assignment. The
consumer acts on a new assignment in its own thread, between two polls, so that no partition is
revoked in the middle of its work:

    revoked    partitions that are no longer assigned: commit, release, report that
    assigned   partitions that are assigned in addition
    lost       the consumer is no longer a member: uncommitted work is void

A partition that is reported as owned is not assigned to another member before its release is
reported. One that is not reported yet may be revoked at any moment, and even come back. So new
partitions are reported before anything about them is read, and only if they were not away since the
consumer has looked at its assignment (`holds`).

Membership is lost if the owner reports it, if no heartbeat was answered for a session timeout, or
if the consumer did not poll for `max_poll_interval_ms`. Its partitions are then assigned to others.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import MemberFenced, Retriable, StrandlineError
from strandline.changelog.groups import Assignment, GroupMember, Subscription
from strandline.changelog.records import TopicPartition

HEARTBEATS_PER_SESSION = 3
"""Heartbeats per session timeout; Kafka's rule for heartbeat.interval.ms is at most a third."""
LONGEST_HEARTBEAT_S = 1.0
"""Maximum seconds that a heartbeat waits for a new assignment."""
PAUSE_S = 0.05
"""Seconds between two heartbeats without a new assignment."""


Partitions = frozenset[TopicPartition]


class Reporting(Protocol):
    """Part of a membership that `rebalance` needs."""

    def holds(self, partitions: Collection[TopicPartition]) -> bool:
        """Report the owned partitions to the group. See Membership.holds."""
        ...


def rebalance(
    membership: Reporting,
    owned: Partitions,
    assigned: Partitions,
    *,
    release: Callable[[Partitions], bool],
    take: Callable[[Partitions], None],
) -> bool:
    """Change the owned partitions to the assigned ones, and report them to the group.

    Revoked partitions come first, because other members wait for them. They are released before the
    report, so that a last commit of them is still accepted. New ones are taken after the report, so
    that no other member can have changed their offsets in between.

    Args:
        membership: Membership to which the owned partitions are reported.
        owned: Partitions owned now.
        assigned: Partitions to own.
        release: Commits and releases revoked partitions; returns False if the membership was lost
            meanwhile, and then nothing more is done.
        take: Takes new partitions.

    Returns:
        True if new partitions were taken. New ones that were away meanwhile are left to the next
        call.
    """
    if (revoked := owned - assigned) and not release(revoked):
        return False
    # Also if nothing was revoked: partitions may have been dropped since the last report.
    membership.holds(owned & assigned)
    new = assigned - owned
    if not new or not membership.holds(assigned):
        return False
    take(new)
    return True


class Membership:
    """Membership of one consumer in one group, until `leave`. Raises the broker's errors."""

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
        self._owned: frozenset[TopicPartition] = frozenset()
        self._assignment = Assignment(0, ())
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._shown: frozenset[TopicPartition] = frozenset()
        """Partitions that the consumer saw at its last look."""
        self._missed: frozenset[TopicPartition] = frozenset()
        """Partitions of `_shown` that were not assigned at some moment since."""
        self._standbys: frozenset[TopicPartition] = frozenset()
        self._answered_at = self._confirmed_at = self._polled_at = clock.monotonic()
        self._failure: StrandlineError | None = None
        self._stop = threading.Event()
        self.member: GroupMember = broker.join_group(group, subscription)
        self.beat(0.0)  # partitions without an owner are assigned at once
        # The thread has only a weak reference, so that it ends after the consumer is collected.
        threading.Thread(
            target=_beat_until_stopped,
            args=(weakref.ref(self),),
            name="strandline-group",
            daemon=True,
        ).start()

    def allowed(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions. Call it at each poll. Raises MemberFenced if lost."""
        with self._lock:
            self._polled_at = self._clock.monotonic()
            if self._failure is not None:
                raise self._failure
            self._shown, self._missed = self._assigned, frozenset()
            return self._assigned

    def standbys(self) -> frozenset[TopicPartition]:
        """Return the partitions that the member keeps copies of."""
        with self._lock:
            return self._standbys

    def holds(self, partitions: Collection[TopicPartition]) -> bool:
        """Report the partitions that the consumer owns from now on, unless they are the same.

        Returns False, and reports nothing, if new ones among them were not assigned at some moment
        since the last call of `allowed`: another member may have had them.
        """
        owned = frozenset(partitions)
        with self._lock:
            if owned == self._owned:
                return True
            if not self._missed.isdisjoint(owned - self._owned):
                return False
            self._owned = owned
        self.beat(0.0)
        return True

    def is_certain(self) -> bool:
        """Return True if no other member can own the consumer's partitions now.

        This is certain for one session timeout after the start of the last answered heartbeat.
        """
        with self._lock:
            silent = self._clock.monotonic() - self._confirmed_at
            return self._failure is None and silent < self._session_s

    def beat(self, timeout: float) -> bool:
        """Send a heartbeat; return True if it returned a new assignment.

        `timeout` is the maximum number of seconds to wait for one.
        """
        with self._lock:
            self._calls += 1
            call, seen, held = self._calls, self._assignment.number, self._owned
            started_at = self._clock.monotonic()
        try:
            answer = self._broker.heartbeat(self.member, call, seen, held, timeout=timeout)
        except Retriable:
            self._check_silence()
            raise
        except StrandlineError as error:
            self._fail(error)
            return False
        with self._lock:
            self._answered_at = self._clock.monotonic()
            # Count from the start of the call: the owner may have handled it at any later moment.
            self._confirmed_at = max(self._confirmed_at, started_at)
            if is_new := answer.number > self._assignment.number:
                self._assignment, self._assigned = answer, frozenset(answer.partitions)
                self._missed |= self._shown - self._assigned
                self._standbys = frozenset(answer.standbys)
        return is_new

    def leave(self) -> None:
        """Stop the heartbeats and leave the group, unless the member is static and may return.

        Repeated calls have no effect.
        """
        if not self._stop.is_set():
            self._stop.set()
            if not self._is_static and self._failure is None:
                self._broker.leave_group(self.member)

    @property
    def over(self) -> bool:
        """True if no more heartbeats are needed."""
        return self._stop.is_set() or self._failure is not None

    def beat_once(self) -> None:
        """Send one heartbeat of the thread, and pause if nothing is new."""
        if self._clock.monotonic() - self._polled_at > self._max_poll_s:
            self._fail(
                MemberFenced(
                    f"{self.member.member_id} did not poll for longer than max_poll_interval_ms = "
                    f"{self._max_poll_s * 1000:g} and has left group {self.member.group!r}. What "
                    "takes longer is repeated for ever: raise max_poll_interval_ms above the "
                    "longest time that one record, or one batch, takes"
                )
            )
            self._broker.leave_group(self.member)
            return
        is_new = False
        with contextlib.suppress(Retriable):
            is_new = self.beat(min(self._session_s / HEARTBEATS_PER_SESSION, LONGEST_HEARTBEAT_S))
        if not is_new:  # avoid a busy loop with an owner that answers at once
            self._stop.wait(PAUSE_S)

    def _check_silence(self) -> None:
        if self._clock.monotonic() - self._answered_at > self._session_s:
            self._fail(
                MemberFenced(
                    f"{self.member.member_id} had no answer for its session timeout of "
                    f"{self._session_s:g} s; others may own its partitions"
                )
            )

    def _fail(self, error: StrandlineError) -> None:
        with self._lock:
            self._failure = self._failure or error


def program() -> str:
    """Return the program's name and process id, for descriptions of a group."""
    return f"{Path(sys.argv[0]).name or 'python'}-{os.getpid()}"


def _beat_until_stopped(reference: weakref.ref[Membership]) -> None:
    while (membership := reference()) is not None and not membership.over:
        try:
            membership.beat_once()
        except StrandlineError as error:
            membership._fail(error)
        del membership
