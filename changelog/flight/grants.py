"""Grants: proofs that a client has opened the producer or group member on which it acts.

Ids of producers are small numbers, and ids of members are visible to every client that describes a
group, so an id proves nothing. The server therefore adds a grant to the answer of each call that
opens one (init_producer, the end of a transaction, join_group). A grant is an HMAC of the id and of
the client's token, by a key that only the log knows. The client presents it with each call that
acts on the id, also after a reconnect and to another process that serves the log. The server stores
no grants.
"""

from __future__ import annotations

import hmac
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from strandline.changelog.errors import InvalidRequest, MemberFenced, ProducerFenced
from strandline.changelog.flight.messages import SmallAppend
from strandline.changelog.flight.requests import (
    AddOffsets,
    CommitOffsets,
    EndTransaction,
    Heartbeat,
    InitProducer,
    JoinGroup,
    LeaveGroup,
)
from strandline.changelog.groups import GroupMember
from strandline.changelog.records import Append, ProducerIdentity

GRANT_BYTES = 32
GRANTS_HEADER = "strandline-grants"
MAX_GRANTS = 500
"""Maximum number of grants presented with one call; more do not fit into its headers."""
MAX_KEPT_GRANTS = 10_000
"""Maximum number of producers and members whose grants a client keeps, the last used ones."""
EPOCHS_KEPT = 2
"""Number of epochs of a producer whose grants are kept.

A call of the previous epoch may have to be repeated after its answer was lost.
"""

MemberKey = tuple[str, str]
"""Group and id of a member."""
Subject = ProducerIdentity | MemberKey
"""Subject of a grant: a producer or a group member."""


def subjects_of(message: Any) -> set[Subject]:
    """Return the producers and members for which a request acts."""
    find = _SUBJECTS.get(type(message))
    return set() if find is None else set(find(message))


def opened_by(request: Any, answer: Any) -> Subject | None:
    """Return the producer or member that a request has opened; None for other requests."""
    if isinstance(request, InitProducer | EndTransaction):
        identity: ProducerIdentity = answer
        return identity
    return _member(answer) if isinstance(request, JoinGroup) else None


def producers_of(appends: Iterable[Append]) -> set[Subject]:
    """Return the producers of appends."""
    return {append.producer for append in appends if append.producer is not None}


def _member(member: GroupMember) -> MemberKey:
    return member.group, member.member_id


def _named(request: Any) -> list[Subject]:
    """Return the member for which offsets are committed; nothing without a member id."""
    return [(request.group, request.member_id)] if request.member_id else []


_SUBJECTS: Mapping[type[Any], Callable[[Any], Iterable[Subject]]] = {
    SmallAppend: lambda m: (
        header.producer for header, _ in m.batches if header.producer is not None
    ),
    AddOffsets: lambda r: [r.producer, *_named(r)],
    EndTransaction: lambda r: [r.producer],
    CommitOffsets: _named,
    Heartbeat: lambda r: [_member(r.member)],
    LeaveGroup: lambda r: map(_member, r.members),
}


class Granting:
    """Server side: issues and checks grants.

    Args:
        key: Secret key of the log.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def grant(self, token_id: str, subject: Subject) -> bytes:
        """Return the grant by which clients with this token may act on `subject`."""
        kind = "producer" if isinstance(subject, ProducerIdentity) else "member"
        named = msgspec.msgpack.encode((kind, token_id, *subject))
        return hmac.digest(self._key, named, "sha256")

    def check(self, token_id: str, presented: bytes, subjects: Iterable[Subject]) -> None:
        """Raise ProducerFenced or MemberFenced unless there is a grant for each of `subjects`."""
        shown = [presented[at : at + GRANT_BYTES] for at in range(0, len(presented), GRANT_BYTES)][
            :MAX_GRANTS
        ]
        for subject in subjects:
            expected = self.grant(token_id, subject)
            if not any(hmac.compare_digest(expected, one) for one in shown):
                raise _not_opened(subject)

    def pin_holder(self, token_id: str, holder: str) -> str:
        """Return the log's internal name for the pin holder `holder` of a token.

        Other tokens cannot guess it, so they can neither see nor release these pins.
        """
        named = msgspec.msgpack.encode(("pin", token_id, holder))
        return hmac.digest(self._key, named, "sha256").hex()[:32]


class Grants:
    """Client side: the grants received since the log was opened. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int | MemberKey, dict[Subject, bytes]] = OrderedDict()

    def keep(self, subject: Subject, grant: bytes) -> None:
        """Store a grant; evict old ones beyond the limits."""
        with self._lock:
            kept = self._kept.setdefault(_key(subject), {})
            kept[subject] = grant
            self._kept.move_to_end(_key(subject))
            while len(kept) > EPOCHS_KEPT:
                del kept[next(iter(kept))]
            while len(self._kept) > MAX_KEPT_GRANTS:
                self._kept.popitem(last=False)

    def presented(self, subjects: Iterable[Subject]) -> bytes:
        """Return a header's value with the stored grants for `subjects`. Raises InvalidRequest."""
        found = []
        with self._lock:
            for subject in subjects:
                grant = self._kept.get(_key(subject), {}).get(subject)
                if grant is not None:
                    self._kept.move_to_end(_key(subject))
                    found.append(grant)
        if len(found) > MAX_GRANTS:
            raise InvalidRequest(
                f"one call over TCP acts for {len(found)} producers, the limit is {MAX_GRANTS}; make "
                "several calls"
            )
        return b"".join(found).hex().encode()


def presented_in(header: str) -> bytes:
    """Return the grants in a call's header. Raises InvalidRequest."""
    try:
        return bytes.fromhex(header)
    except ValueError:
        raise InvalidRequest(f"the header {GRANTS_HEADER} must be hexadecimal digits") from None


def _key(subject: Subject) -> int | MemberKey:
    return subject.producer_id if isinstance(subject, ProducerIdentity) else subject


def _not_opened(subject: Subject) -> ProducerFenced | MemberFenced:
    if isinstance(subject, ProducerIdentity):
        return ProducerFenced(
            f"producer {subject.producer_id} with epoch {subject.epoch} was not opened by this client; "
            "call init_producer, and use its answer"
        )
    group, member_id = subject
    return MemberFenced(
        f"the member {member_id!r} of group {group!r} was not opened by this client; join the group, "
        "and use its answer"
    )
