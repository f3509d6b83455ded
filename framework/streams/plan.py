"""Plan of an app's streams: the operators that lead to an end, and the stages that run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from strandline.framework.streams.nodes import Node
from strandline.framework.streams.schemas import ROW, TIME, WATERMARK
from strandline.framework.streams.stages import Stage, stages_of
from strandline.framework.streams.stateful import Repartition, StatefulNode

if TYPE_CHECKING:
    from strandline.framework.streams.fingerprints import Fingerprint


class Plan:
    """Operators of streams, each after its inputs.

    Args:
        ends: Nodes to which the plan leads, in the order of their declaration.
        app: Name of the app.

    >>> import strandline as sl
    >>> app = sl.App("airport")
    >>> words = app.stream(app.topic("words", value=str))
    >>> copy = words.filter(sl.col("value") != "").to("copy")
    >>> print("\\n".join(app.plan().describe()))
    stage copy
      source words
      filter col(value) !=
      sink copy by key
    """

    def __init__(self, ends: Sequence[Node], app: str) -> None:
        self.app = app
        self.nodes = _in_order(ends)
        """All nodes, each after its inputs."""

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Parts of the plan that run by themselves, each after those whose rows it reads."""
        return stages_of(self.nodes, self.consumers, self.stored_columns)

    @cached_property
    def consumers(self) -> Mapping[Node, tuple[Node, ...]]:
        """Nodes that read the rows of each node."""
        found: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for source in dict.fromkeys(node.inputs):
                found[source].append(node)
        return {node: tuple(readers) for node, readers in found.items()}

    @cached_property
    def used_columns(self) -> Mapping[Node, frozenset[str]]:
        """Columns of each node that are used after it."""
        found: dict[Node, set[str]] = {node: set() for node in self.nodes}
        for node in reversed(self.nodes):
            if node.inputs:
                needed = node.columns_needed(found[node])
                for source in node.inputs:
                    found[source] |= needed
        return {node: frozenset(names) for node, names in found.items()}

    def stored_columns(self, node: Repartition) -> tuple[str, ...]:
        """Return the columns of rows that an internal topic keeps: those used after it, and keys."""
        used = self.used_columns[node] | set(node.keys)
        of_rows = [name for name in node.schema if name not in (TIME, WATERMARK, ROW)]
        return tuple(name for name in of_rows if name in used)

    def fingerprints(self) -> list[Fingerprint]:
        """Return the fingerprint of each operator that keeps state."""
        from strandline.framework.streams.fingerprints import fingerprint

        return [fingerprint(node) for node in self.nodes if isinstance(node, StatefulNode)]

    # Showing -----------------------------------------------------------------------------------

    def describe(self) -> list[str]:
        """Return the stages and their operators as lines of text."""
        from strandline.framework.streams.describing import lines

        return lines(self.stages)

    def data(self) -> list[dict[str, Any]]:
        """Return the stages and their operators as plain data."""
        from strandline.framework.streams.describing import plain

        return plain(self.stages)

    def mermaid(self) -> str:
        """Return the plan as a flowchart of Mermaid."""
        from strandline.framework.streams.mermaid import flowchart

        return flowchart(self.stages)

    def svg(self) -> str:
        """Return the plan as a drawing."""
        from strandline.framework.streams.drawing import drawing

        return drawing(self.stages)

    def __repr__(self) -> str:
        return "\n".join(self.describe())

    def _repr_html_(self) -> str:
        return self.svg()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "image/svg+xml": self.svg()}


def _in_order(ends: Sequence[Node]) -> tuple[Node, ...]:
    """Return all nodes that lead to the ends, each after its inputs."""
    found: dict[Node, None] = {}
    # Not by recursion, because a pipeline may have more operators than Python allows calls.
    waiting = [(node, False) for node in reversed(ends)]
    while waiting:
        node, inputs_are_there = waiting.pop()
        if node in found:
            continue
        if inputs_are_there:
            found[node] = None
        else:
            waiting.append((node, True))
            waiting += [(source, False) for source in reversed(node.inputs)]
    return tuple(found)
