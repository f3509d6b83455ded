"""Plan as a flowchart in the language of Mermaid, which many sites draw."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.framework.streams.describing import source_text
from strandline.framework.streams.nodes import Node
from strandline.framework.streams.stages import Stage
from strandline.framework.streams.stateful import Boundary, StatefulNode


def flowchart(stages: Sequence[Stage]) -> str:
    """Return the flowchart of a plan: a box for each stage, and in it one for each operator."""
    everything = dict.fromkeys(n for s in stages for n in (*s.sources, *s.nodes))
    names = {node: f"n{at}" for at, node in enumerate(everything, 1)}
    made = ["flowchart TD"]
    for at, stage in enumerate(stages, 1):
        made += [f"  subgraph s{at}[{_quoted(f'stage {stage.name}')}]"]
        made += [f"    {line}" for line in _boxes(stage, names)]
        made += ["  end"]
    made += [f"  {line}" for stage in stages for line in _arrows(stage, names)]
    return "\n".join(made) + "\n"


def _boxes(stage: Stage, names: dict[Node, str]) -> list[str]:
    sources = [f"{_source(s, names)}([{_quoted(source_text(s))}])" for s in stage.sources]
    return [*sources, *(_box(node, names[node]) for node in stage.nodes)]


def _box(node: Node, name: str) -> str:
    text = _quoted(node.describe())
    return f"{name}[({text})]" if isinstance(node, StatefulNode) else f"{name}[{text}]"


def _arrows(stage: Stage, names: dict[Node, str]) -> list[str]:
    reading = {node: _source(node, names) for node in stage.sources}
    through = [f"{names[s]} -.-> {reading[s]}" for s in stage.sources if isinstance(s, Boundary)]
    inside = [
        f"{reading.get(source, names[source])} --> {names[node]}"  # type: ignore[call-overload]
        for node in stage.nodes
        for source in node.inputs
    ]
    return [*through, *inside]


def _source(node: Node, names: dict[Node, str]) -> str:
    """Return the name of the box that reads a topic; a written topic has one that writes it too."""
    return f"{names[node]}r" if isinstance(node, Boundary) else names[node]


def _quoted(text: str) -> str:
    """Return a text as Mermaid takes it, with its special characters as entities."""
    for plain, entity in (("#", "35"), ("&", "amp"), ('"', "quot"), ("<", "lt"), (">", "gt")):
        text = text.replace(plain, f"\0{entity};")
    return f'"{text}"'.replace("\0", "#")
