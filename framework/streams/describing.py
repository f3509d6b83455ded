"""Plan as text and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.framework.streams.nodes import Node
from strandline.framework.streams.stages import Stage, topic_of
from strandline.framework.streams.stateful import OutputNode, Repartition


def lines(stages: Sequence[Stage]) -> list[str]:
    """Return a plan as lines: each stage, and its operators in the order of their rows.

    An operator that does not follow the one above it names its inputs by their numbers.
    """
    return [line for stage in stages for line in _stage_lines(stage)]


def plain(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """Return a plan as plain data: a dict for each stage."""
    return [
        {
            "stage": stage.name,
            "topics": list(stage.topics),
            "stores": list(stage.stores),
            "outputs": [
                topic_of(s) for s in stage.sinks if isinstance(s, OutputNode | Repartition)
            ],
            "operators": _operators(stage),
        }
        for stage in stages
    ]


def source_text(node: Node) -> str:
    """Return a source of a stage on one line."""
    return f"source {topic_of(node)}"


def _stage_lines(stage: Stage) -> list[str]:
    everything = [*stage.sources, *stage.nodes]
    reading = {node: at for at, node in enumerate(stage.sources)}
    numbers = {node: at for at, node in enumerate(everything)} | reading
    numbered = any(_inputs(node, numbers) != [at - 1] for at, node in enumerate(everything) if at)
    made = [f"stage {stage.name}"]
    for at, node in enumerate(everything):
        text = source_text(node) if at < len(stage.sources) else node.describe()
        if isinstance(node, Repartition) and at >= len(stage.sources):
            text += f" ({', '.join(stage.stored[node])})"
        inputs = [] if at < len(stage.sources) else _inputs(node, numbers)
        follows = inputs == [at - 1] or not inputs
        origin = "" if follows else f"  <- {', '.join(str(n + 1) for n in inputs)}"
        made.append(f"  {at + 1}. {text}{origin}" if numbered else f"  {text}")
    return made


def _operators(stage: Stage) -> list[dict[str, Any]]:
    everything: list[Node] = [*stage.sources, *stage.nodes]
    reading: dict[Node, int] = {node: at for at, node in enumerate(stage.sources)}
    numbers = {node: at for at, node in enumerate(everything)} | reading
    return [
        {
            "operator": "source" if is_source else node.label,
            "detail": topic_of(node) if is_source else node.detail,
            "columns": {name: str(dtype) for name, dtype in node.visible.items()},
            "inputs": [] if is_source else _inputs(node, numbers),
            "where": node.where,
        }
        for at, node in enumerate(everything)
        for is_source in [at < len(stage.sources)]
    ]


def _inputs(node: Node, numbers: dict[Node, int]) -> list[int]:
    return [numbers[source] for source in node.inputs if source in numbers]
