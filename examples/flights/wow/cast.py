"""A recording of a terminal in asciinema's format (v2): `asciinema play FILE` shows it again."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import TextIO


class Recorder(io.StringIO):
    """Passes on what is written, and keeps it with its time."""

    def __init__(self, onto: TextIO, *, width: int, height: int, title: str) -> None:
        super().__init__()
        self._onto = onto
        self._begun = time.monotonic()
        self._header = {"version": 2, "width": width, "height": height, "title": title}
        self._events: list[tuple[float, str]] = []

    def write(self, text: str, /) -> int:
        self._events.append((time.monotonic() - self._begun, text))
        return self._onto.write(text)

    def flush(self) -> None:
        self._onto.flush()

    def isatty(self) -> bool:
        return self._onto.isatty()

    def save(self, path: Path) -> None:
        """One JSON document a line: the header, then what was written when."""
        lines = [json.dumps(self._header)]
        lines += [json.dumps([round(at, 3), "o", text]) for at, text in self._events]
        path.write_text("\n".join(lines) + "\n")
