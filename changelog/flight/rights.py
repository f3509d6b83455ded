"""Rights of a token: topics that it may read and produce to, groups, and transactional ids.

A right is for one name, or for all names with a prefix ("shop-*").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from strandline.changelog.errors import InvalidConfig, NotAuthorized
from strandline.changelog.sinks import SINKS, STAGING, TRANSACTIONS

RESERVED = "__"
"""Prefix of the log's own topics."""
MAX_PATTERNS = 1_000
"""Maximum number of names and prefixes for one kind of right of one token."""
_PATTERN = re.compile(r"[^\s*,\x00-\x1f\x7f]{0,1000}\*?")
ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights of one token.

    Args:
        read: Topics from which it may read records.
        produce: Topics that it may create and append to.
        group: Consumer groups that it may join, and whose offsets it may read and commit.
        transaction: Transactional ids that its producers may use.
        admin: Whether it may do everything. The other rights are ignored then.
    """

    read: Sequence[str] = ()
    produce: Sequence[str] = ()
    group: Sequence[str] = ()
    transaction: Sequence[str] = ()
    admin: bool = False

    def named(self) -> list[str]:
        """Return the rights as errors and lists show them.

        >>> Rights(read=["sales"], produce=["shop-*"]).named()
        ['read:sales', 'produce:shop-*']
        """
        if self.admin:
            return [ADMIN]
        return [f"{kind}:{pattern}" for kind in KINDS for pattern in getattr(self, kind)]

    def check(self) -> None:
        """Raise InvalidConfig if there is no right, or if a pattern is not valid."""
        for kind in KINDS:
            patterns = getattr(self, kind)
            if len(patterns) > MAX_PATTERNS:
                raise InvalidConfig(
                    f"{len(patterns)} names to {kind}, the limit is {MAX_PATTERNS}; use a "
                    "prefix with * at its end"
                )
            for pattern in patterns:
                if not pattern or _PATTERN.fullmatch(pattern) is None:
                    raise InvalidConfig(
                        f"{kind}:{pattern!r} is not a right; give a name, or a prefix with * at its end "
                        "(shop-*)"
                    )
        if not self.named():
            raise InvalidConfig(
                f"a token needs a right: {', '.join(f'{kind}:NAME' for kind in KINDS)}, or {ADMIN}"
            )

    def may(self, kind: str, name: str) -> bool:
        """Return True if there is a right of this kind for a name."""
        return self.admin or matches(getattr(self, kind), name)

    def may_on_topic(self, kind: str, topic: str) -> bool:
        """Return True if there is a right of this kind for a topic.

        For a topic with a reserved name, only patterns that begin with the reserved prefix count.
        """
        patterns = getattr(self, kind)
        if topic.startswith(RESERVED):
            patterns = [pattern for pattern in patterns if pattern.startswith(RESERVED)]
        return self.admin or matches(patterns, topic)


KINDS = tuple(field.name for field in fields(Rights) if field.name != ADMIN)
"""Kinds of rights that have names: all except `admin`."""
NONE, ALL = Rights(), Rights(admin=True)


def rights_of_app(app: str, reads: Iterable[str], produces: Iterable[str]) -> Rights:
    """Return the rights that a worker of an app needs.

    Args:
        app: Name of the app, which is also its group and the prefix of its internal topics and
            transactional ids.
        reads: Names of its input topics.
        produces: Names of its output topics.

    >>> rights_of_app("shop", ["sales"], ["late"]).named()[:3]
    ['read:sales', 'read:shop-*', 'produce:late']
    """
    own = f"{app}-*"
    return Rights([*reads, own], [*produces, own], [app], [own])


def matches(patterns: Iterable[str], name: str) -> bool:
    """Return True if a name equals a pattern, or begins with a pattern that ends with "*".

    >>> matches(["shop-*", "sales"], "shop-late"), matches(["sales"], "sales-2")
    (True, False)
    """
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        for pattern in patterns
    )


class OwnTopics(Protocol):
    """Topics that a token may use besides those that its rights name."""

    def may_use(self, topic: str) -> bool:
        """Return True if the token may read a topic, and append to it."""
        ...

    def owns(self, topic: str) -> bool:
        """Return True if the token may do everything with a topic."""
        ...


@dataclass(frozen=True, slots=True)
class AuthorizedToken:
    """A token and its rights; checks raise NotAuthorized with its name and the missing right."""

    name: str
    token_id: str
    rights: Rights
    own: OwnTopics | None = None

    def need(self, kind: str, name: str) -> None:
        """Raise NotAuthorized unless the token has a right of this kind for a name."""
        if not self.rights.may(kind, name):
            raise self.lacks(f"{kind}:{name}")

    def need_topic(self, kind: str, topic: str) -> None:
        """Raise NotAuthorized unless the token has a right of this kind for a topic."""
        if not (self.rights.may_on_topic(kind, topic) or self._may_use(topic)):
            raise self.lacks(f"{kind}:{topic}")

    def need_named_topic(self, topic: str) -> None:
        """Raise NotAuthorized unless a right to produce names the topic."""
        if not self.rights.may_on_topic("produce", topic):
            raise self.lacks(f"produce:{topic}")

    def owns(self, topic: str) -> bool:
        """Return True if the token may do everything with a topic, without `admin`."""
        return self.own is not None and self.own.owns(topic)

    def _may_use(self, topic: str) -> bool:
        return self.own is not None and self.own.may_use(topic)

    def need_any(self, kind: str) -> None:
        """Raise NotAuthorized unless the token has some right of this kind."""
        if not (self.rights.admin or getattr(self.rights, kind)):
            raise self.lacks(f"{kind}:NAME for some name")

    def need_admin(self) -> None:
        """Raise NotAuthorized unless the token may do everything."""
        if not self.rights.admin:
            raise self.lacks(ADMIN)

    def sees(self, topic: str) -> bool:
        """Return True if the token may know that a topic exists."""
        is_named = any(self.rights.may_on_topic(kind, topic) for kind in ("read", "produce"))
        return is_named or self._may_use(topic)

    def need_to_see(self, topic: str) -> None:
        """Raise NotAuthorized unless the token may know that a topic exists."""
        if not self.sees(topic):
            raise self.lacks(f"read:{topic} or produce:{topic}")

    def lacks(self, right: str) -> NotAuthorized:
        """Return the error for a missing right."""
        whose = f"{self.name!r} (id {self.token_id})" if self.token_id else repr(self.name)
        if STAGING in right or SINKS in right:
            # These topics belong to sinks, so their names say nothing to the user of a token.
            right = f"transaction:{TRANSACTIONS}ID for the sink's id, or produce for its topic ({right})"
        return NotAuthorized(
            f"the token {whose} lacks the right {right}; use a token that has it, or make one on the "
            "machine of the log with `strandline tokens create`"
        )
