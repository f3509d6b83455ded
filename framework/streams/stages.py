"""Stages: the parts of a plan between topics, each of which becomes one task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from strandline.framework.streams.functions import Foreach
from strandline.framework.streams.nodes import Node, TopicSource
from strandline.framework.streams.stateful import (
    Boundary,
    OutputNode,
    Repartition,
    StatefulNode,
)
from strandline.statestore.internal_names import REPARTITION

Sink = OutputNode | Repartition | Foreach
"""Operators at which the rows of a stage end."""
StageSource = TopicSource | Boundary
"""Operators whose topic a stage reads."""


@dataclass(frozen=True, eq=False)
class Stage:
    """A part of a plan whose operators pass rows to each other, and not through a topic."""

    name: str
    """Name of the stage and of its task, unique in the plan."""
    sources: tuple[StageSource, ...]
    """Operators whose topics are read."""
    nodes: tuple[Node, ...]
    """Operators after the sources, each after its inputs; sinks are among them."""
    stored: Mapping[Repartition, tuple[str, ...]]
    """Columns of the values of each internal topic that is read or written."""

    @property
    def topics(self) -> tuple[str, ...]:
        """Names of the topics that are read."""
        return tuple(dict.fromkeys(topic_of(source) for source in self.sources))

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Operators at which rows end: topics that are written, and functions."""
        return tuple(node for node in self.nodes if isinstance(node, Sink))

    @property
    def stores(self) -> tuple[str, ...]:
        """Names of the stores that the stage needs, one for each operator that keeps state."""
        return tuple(node.name for node in self.nodes if isinstance(node, StatefulNode))


def topic_of(node: Node) -> str:
    """Return the name of the topic that an operator reads or writes."""
    if isinstance(node, Repartition):
        return node.topic
    assert isinstance(node, TopicSource | OutputNode)
    return node.topic.name


def stages_of(
    nodes: Sequence[Node],
    consumers: Mapping[Node, Sequence[Node]],
    stored_columns: Callable[[Repartition], tuple[str, ...]],
) -> tuple[Stage, ...]:
    """Return the stages of a plan, each after those whose rows it reads where that is possible.

    Args:
        nodes: Operators of the plan, each after its inputs.
        consumers: Operators that read the rows of each one.
        stored_columns: Function that returns the columns of an internal topic's values.
    """
    parts = _after_inputs(_connected(nodes, consumers))
    names: set[str] = set()
    found = []
    for sources, others in parts:
        name = _unique(_names(sources, others), names)
        names.add(name)
        boundaries = [node for node in (*sources, *others) if isinstance(node, Repartition)]
        stored = {node: stored_columns(node) for node in boundaries}
        found.append(Stage(name, tuple(sources), tuple(others), stored))
    return tuple(found)


_Part = tuple[list[StageSource], list[Node]]
"""Sources of a stage, and its other operators."""


def _connected(nodes: Sequence[Node], consumers: Mapping[Node, Sequence[Node]]) -> list[_Part]:
    """Return the parts of a plan that are connected without a topic between."""
    union = _Union()
    for node in nodes:
        union.find((node, False))
        for source in node.inputs:
            # A topic's reading side is apart from the side that writes it.
            union.join((source, isinstance(source, Boundary)), (node, False))
    parts: dict[_Side, _Part] = {}
    for node in nodes:
        if isinstance(node, Boundary) and consumers[node]:
            parts.setdefault(union.find((node, True)), ([], []))[0].append(node)
        sources, others = parts.setdefault(union.find((node, False)), ([], []))
        sources.append(node) if isinstance(node, TopicSource) else others.append(node)
    return list(parts.values())


_Side = tuple[Node, bool]
"""An operator, and True for the reading side of its topic."""


class _Union:
    """Sets of sides that are connected."""

    def __init__(self) -> None:
        self._parents: dict[_Side, _Side] = {}

    def find(self, side: _Side) -> _Side:
        """Return the side that stands for the set of this one."""
        while (parent := self._parents.setdefault(side, side)) != side:
            side = parent
        return side

    def join(self, one: _Side, other: _Side) -> None:
        """Make one set of the sets of two sides."""
        self._parents[self.find(other)] = self.find(one)


def _after_inputs(parts: list[_Part]) -> list[_Part]:
    """Return parts, each after those that write the topics it reads.

    A part may read what it writes itself, or two parts each other's topics; the first comes first.
    """
    remaining, done = list(parts), []
    while remaining:
        pending = {id(node) for _, nodes in remaining for node in nodes}
        ready = [
            part
            for part in remaining
            if not any(id(source) in pending and source not in part[1] for source in part[0])
        ]
        chosen = (ready or remaining)[0]
        remaining.remove(chosen)
        done.append(chosen)
    return done


def _names(sources: Iterable[StageSource], nodes: Iterable[Node]) -> list[str]:
    """Return names for a stage, the best one first: that of its state, else of what it writes."""
    nodes = list(nodes)
    first = next((topic_of(source) for source in sources), "nothing")
    found = [node.name for node in nodes if isinstance(node, StatefulNode)]
    found += [f"{node.name}{REPARTITION}" for node in nodes if isinstance(node, Repartition)]
    found += [topic_of(node) for node in nodes if isinstance(node, OutputNode)]
    found += [f"{first}-{node.detail}" for node in nodes if isinstance(node, Foreach)]
    return [*found[:1], *(f"{name}-from-{first}" for name in found[:1])] or [first]


def _unique(names: list[str], taken: set[str]) -> str:
    """Return the first name that is not taken, if need be with a number."""
    free = [name for name in names if name not in taken]
    if free:
        return free[0]
    return next(name for n in range(2, len(taken) + 3) if (name := f"{names[-1]}-{n}") not in taken)
