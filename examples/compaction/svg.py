"""Minimal SVG for the pictures, readable on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import escape

_STYLE = """\
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .small { font-size: 11px; fill: #57606a; }
  .clean { fill: #4a90c4; } .dirty { fill: #e8963a; } .active { fill: #a5adb8; }
  .superseded { opacity: 0.3; }
  .frame { fill: none; stroke: #57606a; }
  .line { fill: none; stroke: #e8963a; stroke-width: 1.5; }
  .axis { stroke: #8c959f; stroke-width: 1; } .limit { stroke: #cf222e; stroke-dasharray: 5 4; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9198a1; } .frame { stroke: #9198a1; }
    .clean { fill: #6cb0e0; } .dirty { fill: #f0a85a; } .line { stroke: #f0a85a; }
    .active { fill: #7d8590; } .limit { stroke: #ff7b72; }
  }
"""


class Picture:
    """A drawing of `width` × `height` pixels; later shapes cover earlier ones."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">\n'
            f"<title>{escape(title)}</title>\n<style>\n{_STYLE}</style>\n"
        )
        self._parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """Draw a rectangle; `kind` names classes of the style."""
        self._parts.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
        )

    def line(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        """Draw a line through points."""
        listed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline class="{kind}" points="{listed}"/>')

    def area(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        """Fill the polygon of points."""
        listed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polygon class="{kind}" points="{listed}"/>')

    def text(
        self, x: float, y: float, words: str, *, anchor: str = "start", kind: str = ""
    ) -> None:
        """Draw text on one line; `anchor` is start, middle or end."""
        self._parts.append(
            f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def save(self, path: Path) -> None:
        """Write the picture to a file."""
        path.write_text(self._head + "\n".join(self._parts) + "\n</svg>\n", encoding="utf-8")
