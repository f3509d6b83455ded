"""Plan as a drawing in SVG: a frame for each stage, and in it the operators from left to right.

The layout has layers. An operator is one layer after the last of its inputs, and within a layer
operators are in the order of the middle of their inputs, which avoids most crossings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

from strandline.changelog.printable import shortened
from strandline.framework.streams.nodes import Node
from strandline.framework.streams.stages import Stage, topic_of
from strandline.framework.streams.stateful import Boundary, OutputNode, StatefulNode

BOX_WIDTH_PX, BOX_HEIGHT_PX = 180, 46
GAP_X_PX, GAP_Y_PX, MARGIN_PX = 44, 16, 16
TITLE_HEIGHT_PX = 26
"""Lengths in pixels."""
MAX_TEXT_CHARS = 27
"""Greatest number of characters that fit into a box; the whole text is in its tooltip."""

_CLASS = "strandline-plan"
_RULES = {
    "text": "font:12px system-ui,sans-serif;fill:#1b1f24",
    ".title": "font-weight:600",
    ".kind": "font-weight:600",
    ".detail": "font-size:11px;fill:#57606a",
    ".frame": "fill:#f6f8fa;stroke:#d0d7de",
    ".box": "fill:#ffffff;stroke:#8c959f",
    ".topic": "fill:#ddf4ff;stroke:#218bff",
    ".state": "fill:#fff8c5;stroke:#bf8700",
    ".edge": "fill:none;stroke:#57606a;stroke-width:1.3",
    ".through-topic": "stroke-dasharray:4 3",
}
# A style in a page applies to all of the page, so each rule is limited to drawings of plans.
_STYLE = "".join(f".{_CLASS} {selector}{{{rule}}}" for selector, rule in _RULES.items())


@dataclass
class _Band:
    """Layout of one stage."""

    stage: Stage
    top: float
    places: dict[Node, tuple[float, float]] = field(default_factory=dict)
    """Left and top of the box of each operator of the stage."""
    reading: dict[Node, tuple[float, float]] = field(default_factory=dict)
    """Left and top of the box of each topic that the stage reads."""
    width: float = 0
    height: float = 0

    def of_input(self, node: Node) -> tuple[float, float] | None:
        """Return the box in this stage that gives the rows of a node; None if there is none."""
        return self.reading.get(node) or self.places.get(node)


def drawing(stages: Sequence[Stage]) -> str:
    """Return the drawing of a plan."""
    bands: list[_Band] = []
    top = float(MARGIN_PX)
    for stage in stages:
        band = _laid_out(stage, top)
        bands.append(band)
        top += band.height + MARGIN_PX
    width = max((band.width for band in bands), default=0) + 2 * MARGIN_PX
    # Boxes come last, so that edges pass behind them.
    body = [*map(_frame, bands), *_edges_between(bands)]
    body += [part for band in bands for part in (*_edges_within(band), *_boxes(band))]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{_CLASS}" width="{width:.0f}" height="{top:.0f}"'
        f' viewBox="0 0 {width:.0f} {top:.0f}" role="img" aria-label={quoteattr(_label(stages))}>'
        f"<style>{_STYLE}</style>{''.join(body)}</svg>"
    )


def _label(stages: Sequence[Stage]) -> str:
    return f"plan of the stages {', '.join(stage.name for stage in stages)}"


# Layout ----------------------------------------------------------------------------------------


def _laid_out(stage: Stage, top: float) -> _Band:
    """Return the layout of a stage whose frame begins at `top`."""
    band = _Band(stage, top)
    rows: dict[Node, float] = {}
    layers = _layers(stage)
    for at, layer in enumerate(layers):
        for row, (node, reads) in enumerate(sorted(layer, key=lambda box: _middle(box, rows))):
            place = (
                2 * MARGIN_PX + at * (BOX_WIDTH_PX + GAP_X_PX),
                top + TITLE_HEIGHT_PX + row * (BOX_HEIGHT_PX + GAP_Y_PX),
            )
            (band.reading if reads else band.places)[node] = place
            rows[node] = row
    tallest = max(map(len, layers))
    band.width = len(layers) * (BOX_WIDTH_PX + GAP_X_PX) - GAP_X_PX + 2 * MARGIN_PX
    band.height = TITLE_HEIGHT_PX + tallest * (BOX_HEIGHT_PX + GAP_Y_PX) - GAP_Y_PX + MARGIN_PX
    return band


def _layers(stage: Stage) -> list[list[tuple[Node, bool]]]:
    """Return the boxes of each layer: operators, and True for those whose topic is read."""
    depth: dict[Node, int] = dict.fromkeys(stage.sources, 0)
    layers: list[list[tuple[Node, bool]]] = [[(source, True) for source in stage.sources]]
    for node in stage.nodes:
        at = 1 + max((depth[source] for source in node.inputs if source in depth), default=0)
        if node not in stage.sources:
            depth[node] = at
        while len(layers) <= at:
            layers.append([])
        layers[at].append((node, False))
    return layers


def _middle(box: tuple[Node, bool], rows: dict[Node, float]) -> float:
    """Return the mean row of the inputs of a box."""
    node, reads = box
    found = [] if reads else [rows[source] for source in node.inputs if source in rows]
    return sum(found) / len(found) if found else 0


# Parts of the drawing --------------------------------------------------------------------------


def _frame(band: _Band) -> str:
    """Return the frame of a stage, with its name."""
    return (
        f'<rect class="frame" x="{MARGIN_PX}" y="{band.top:.0f}" width="{band.width:.0f}"'
        f' height="{band.height:.0f}" rx="6"/><text class="title" x="{2 * MARGIN_PX}"'
        f' y="{band.top + 17:.0f}">{escape(f"stage {band.stage.name}")}</text>'
    )


def _edges_within(band: _Band) -> list[str]:
    """Return the curves between the boxes of a stage."""
    return [
        _edge(source, place)
        for node, place in band.places.items()
        for at in node.inputs
        if (source := band.of_input(at)) is not None
    ]


def _boxes(band: _Band) -> list[str]:
    """Return the boxes of a stage."""
    boxes = [_box(place, "source", topic_of(n), "topic") for n, place in band.reading.items()]
    return boxes + [_box(p, n.label, n.detail, _kind(n)) for n, p in band.places.items()]


def _kind(node: Node) -> str:
    if isinstance(node, StatefulNode):
        return "state"
    return "topic" if isinstance(node, OutputNode | Boundary) else "box"


def _box(place: tuple[float, float], label: str, detail: str, kind: str) -> str:
    x, y = place
    return (
        f'<g><title>{escape(f"{label} {detail}")}</title><rect class="{kind}" x="{x:.0f}"'
        f' y="{y:.0f}" width="{BOX_WIDTH_PX}" height="{BOX_HEIGHT_PX}" rx="5"/>'
        f'<text class="kind" x="{x + 10:.0f}" y="{y + 19:.0f}">{escape(label)}</text>'
        f'<text class="detail" x="{x + 10:.0f}" y="{y + 35:.0f}">{escape(shortened(detail, MAX_TEXT_CHARS))}</text></g>'
    )


def _edge(source: tuple[float, float], target: tuple[float, float]) -> str:
    """Return the curve from the right of a box to the left of another one, with an arrow."""
    x1, y1 = source[0] + BOX_WIDTH_PX, source[1] + BOX_HEIGHT_PX / 2
    x2, y2 = target[0], target[1] + BOX_HEIGHT_PX / 2
    bend = (x2 - x1) / 2
    return (
        f'<path class="edge" d="M{x1:.0f},{y1:.0f} C{x1 + bend:.0f},{y1:.0f}'
        f' {x2 - bend:.0f},{y2:.0f} {x2:.0f},{y2:.0f} m-6,-4 l6,4 l-6,4"/>'
    )


def _edges_between(bands: list[_Band]) -> list[str]:
    """Return the curves from where a topic is written to where it is read."""
    return [
        _topic_edge(writing.places[node], place)
        for band in bands
        for node, place in band.reading.items()
        for writing in bands
        if node in writing.places
    ]


def _topic_edge(source: tuple[float, float], target: tuple[float, float]) -> str:
    """Return the curve from the bottom of a box to the top of one in another stage."""
    x1, y1 = source[0] + BOX_WIDTH_PX / 2, source[1] + BOX_HEIGHT_PX
    x2, y2 = target[0] + BOX_WIDTH_PX / 2, target[1]
    bend = max((y2 - y1) / 2, 20)
    return (
        f'<path class="edge through-topic" d="M{x1:.0f},{y1:.0f} C{x1:.0f},{y1 + bend:.0f}'
        f' {x2:.0f},{y2 - bend:.0f} {x2:.0f},{y2:.0f}"/>'
        f'<path class="edge" d="M{x2 - 4:.0f},{y2 - 6:.0f} l4,6 l4,-6"/>'
    )
