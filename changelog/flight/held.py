"""Objects that clients over TCP hold in the log beyond a call: members and pins, by token.

The log keeps a member until it leaves or its session times out, and a pin until it is released or
times out, whether its client is connected or not. So each token has a limit for both. The counts
are kept in memory: a restarted server counts pins from zero. Members are not counted twice, because
they join again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import QuotaExceeded
from strandline.changelog.flight.grants import MemberKey
from strandline.changelog.flight.requests import HoldPin, JoinGroup, LeaveGroup, ReleasePins, UsePin
from strandline.changelog.groups import Subscription
from strandline.changelog.pins import PinName

MAX_PINS = 1_000
"""Maximum number of pins of one token."""
MAX_MEMBERS_OF_TOKEN = 10_000
"""Maximum number of members in all groups that clients with one token have joined."""
MAX_MEMBER_CHARACTERS = 64 << 20
"""Maximum number of characters in the subscriptions of these members."""
MEMBER_CHARACTERS = 1_000
"""Characters counted for each member in addition to its subscription."""
LIST_CHARACTERS = 100
"""Characters counted for each list of names in a subscription in addition to the names."""
PRUNE_S = 1.0
"""Minimum seconds between two searches for members of a token that are gone."""


@dataclass(slots=True)
class _Pinned:
    """A pin of a token."""

    timeout_s: float
    deadline: float


class _OfToken:
    """Members and pins of one token."""

    def __init__(self) -> None:
        self.members: dict[MemberKey, int] = {}
        """Characters of each member's subscription."""
        self.joining = 0
        """Number of members that are joining now."""
        self.characters = 0
        """Characters of the subscriptions of all these members."""
        self.pins: dict[PinName, _Pinned] = {}
        self.pruned_at = float("-inf")

    def has_room(self, size: int) -> bool:
        """Return True if one more member, with `size` characters, is within the limits."""
        count = len(self.members) + self.joining
        return count < MAX_MEMBERS_OF_TOKEN and self.characters + size <= MAX_MEMBER_CHARACTERS

    def add_member(self, key: MemberKey, size: int) -> None:
        """Count a member."""
        self.remove_member(key)
        self.members[key] = size
        self.characters += size

    def remove_member(self, key: MemberKey) -> None:
        """Stop counting a member; does nothing if it is not counted."""
        self.characters -= self.members.pop(key, 0)


class HeldObjects:
    """Counts members and pins of each token. Thread-safe.

    Args:
        broker: The log, which is asked which members exist.
        clock: Measures the timeouts of pins.
    """

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens: dict[str, _OfToken] = {}

    @contextmanager
    def counted(self, token_id: str, request: Any) -> Iterator[Callable[[Any], None]]:
        """Count what a request opens while it runs, and yield a function for its answer.

        That function counts what the answer has opened beyond the request, and stops counting what
        the request has closed. Raises QuotaExceeded if the token holds too much.
        """
        of = self._of(token_id)
        if isinstance(request, JoinGroup):
            with self._joining(of, _size_of(request.subscription)):
                yield lambda answer: self._note(of, request, answer)
            return
        if isinstance(request, HoldPin):
            with self._lock:
                self._check_pins(of, request.name)
        yield lambda answer: self._note(of, request, answer)

    def _of(self, token_id: str) -> _OfToken:
        with self._lock:
            return self._tokens.setdefault(token_id, _OfToken())

    def _note(self, of: _OfToken, request: Any, answer: Any) -> None:
        now = self._clock.monotonic()
        with self._lock:
            match request:
                case JoinGroup():
                    key = answer.group, answer.member_id
                    of.add_member(key, _size_of(request.subscription))
                case LeaveGroup():
                    for member in request.members:
                        of.remove_member((member.group, member.member_id))
                case HoldPin(name, _, timeout_ms):
                    # The log releases the holder's pins that begin elsewhere.
                    for other in [p for p in of.pins if p.holder == name.holder]:
                        if other.since != name.since:
                            del of.pins[other]
                    of.pins[name] = _Pinned(timeout_ms / 1000, now + timeout_ms / 1000)
                case UsePin(name) if (pinned := of.pins.get(name)) is not None:
                    pinned.deadline = now + pinned.timeout_s
                case ReleasePins(holder, until):
                    for name in [p for p in of.pins if (p.holder, p.until) == (holder, until)]:
                        del of.pins[name]

    # Pins -----------------------------------------------------------------------------

    def _check_pins(self, of: _OfToken, name: PinName) -> None:
        now = self._clock.monotonic()
        if len(of.pins) >= MAX_PINS:
            for other in [p for p, pinned in of.pins.items() if pinned.deadline <= now]:
                del of.pins[other]
        if len(of.pins) >= MAX_PINS and name not in of.pins:
            raise QuotaExceeded(
                f"this token holds {len(of.pins):,} pins, at most {MAX_PINS:,} are allowed; release "
                "some, or wait for their timeout"
            )

    # Members --------------------------------------------------------------------------

    @contextmanager
    def _joining(self, of: _OfToken, size: int) -> Iterator[None]:
        """Count a member of `size` while it joins. Raises QuotaExceeded."""
        with self._lock:
            is_full = not of.has_room(size)
        if is_full:
            self._prune(of)
        with self._lock:
            if not of.has_room(size):
                raise _too_many_members(of)
            of.joining += 1
            of.characters += size
        try:
            yield
        finally:
            with self._lock:
                of.joining -= 1
                of.characters -= size

    def _prune(self, of: _OfToken) -> None:
        """Stop counting members that are gone, at most once in PRUNE_S."""
        with self._lock:
            now = self._clock.monotonic()
            if now - of.pruned_at < PRUNE_S:
                return
            of.pruned_at = now
            known = list(of.members)
        there = {
            (group, member.member_id)
            for group in {group for group, _ in known}
            for member in self._broker.describe_group(group).members
        }
        with self._lock:
            for key in known:
                if key not in there:
                    of.remove_member(key)


def _size_of(subscription: Subscription) -> int:
    lists = (*subscription.together, *(subscription.tasks or ()))
    names = (*subscription.topics, *chain.from_iterable(lists), *subscription.servers)
    return MEMBER_CHARACTERS + LIST_CHARACTERS * len(lists) + sum(map(len, names))


def _too_many_members(of: _OfToken) -> QuotaExceeded:
    return QuotaExceeded(
        f"clients with this token have joined groups with {len(of.members):,} members, whose "
        f"subscriptions have {of.characters:,} characters; at most "
        f"{MAX_MEMBERS_OF_TOKEN:,} and {MAX_MEMBER_CHARACTERS:,} are allowed; let some leave, or use "
        "another token"
    )
