"""Streams of one app as they are declared: their ends, and the names of their operators."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from strandline.framework.declarations import INTERNAL_SUFFIXES, Declarations
from strandline.framework.session import Session
from strandline.framework.streams.nodes import Node
from strandline.framework.streams.places import refusal, user_place
from strandline.statestore.internal_names import REPARTITION

if TYPE_CHECKING:
    from strandline.framework.streams.plan import Plan


class StreamGraph:
    """Ends of an app's streams, from which its plan is built.

    Args:
        session: Session of the app.
        declared: The app's topics, stores and tasks.
    """

    def __init__(self, session: Session, declared: Declarations) -> None:
        self.session = session
        self.declared = declared
        self.ends: list[Node] = []
        """Sinks, and operators that keep state, in the order of their declaration."""
        self._names: dict[str, str] = {}
        """File and line by the name of an operator."""
        self._topics: dict[str, str] = {}
        """File and line by the name of an internal topic."""

    def plan(self) -> Plan:
        """Return the plan of all streams that have an end."""
        from strandline.framework.streams.plan import Plan

        return Plan(tuple(self.ends), self.session.app)

    def end(self, node: Node) -> None:
        """Add a node that is computed even if nothing follows it."""
        if self.declared.is_running():
            raise refusal(
                node.label,
                f"app {self.session.app!r} is running, and would not take the stream up; declare"
                " all streams before app.run, or stop the app first",
            )
        self.ends.append(node)

    def claim(self, name: Any, operator: str) -> str:
        """Return a name that a user gave to an operator, which no other operator may have then.

        Raises InvalidConfig if it is missing, no valid name, or in use.
        """
        found = checked_name(name, operator)
        if found in self._names:
            raise refusal(
                operator,
                f"there is an operator called {found!r} already, declared at {self._names[found]};"
                " its state and internal topics have this name, so choose another one",
            )
        if found in self.declared.stores:
            raise refusal(
                operator, f"there is a store called {found!r} already; choose another name"
            )
        self._names[found] = user_place()
        return found

    def internal_topic(self, name: str, operator: str) -> str:
        """Return the name of the internal topic of an operator, which no other one has.

        Raises InvalidConfig if another operator has it.
        """
        topic = f"{self.session.app}-{name}{REPARTITION}"
        if topic in self._topics:
            raise refusal(
                operator,
                f"there is an internal topic {topic!r} already, declared at {self._topics[topic]};"
                " choose another name=",
            )
        self._topics[topic] = user_place()
        return topic


def checked_name(name: Any, operator: str) -> str:
    """Return the name of an operator. Raise InvalidConfig if it is missing or not valid."""
    if name is None:
        raise refusal(
            operator,
            "an operator that keeps state needs a name, after which its store and its internal"
            " topics are called; add name='…' and keep it when the pipeline changes",
        )
    plain = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name)
    if not plain or name in (".", "..") or name.startswith("__"):
        raise refusal(
            operator,
            f"name={name!r:.200} is no valid name; use 1 to 100 of A-Z a-z 0-9 . _ -, not beginning"
            " with two underscores",
        )
    if name.endswith(INTERNAL_SUFFIXES):
        raise refusal(
            operator, f"name={name!r}: names with this ending are reserved; choose another one"
        )
    return str(name)
