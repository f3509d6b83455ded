"""Recording of a terminal in asciinema's format (v2); `asciinema play FILE` plays it."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import TextIO


class Recorder(io.StringIO):
    """Stream that forwards what is written and records it with its time."""

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
        """Write one JSON document per line: the header, then each output with its time."""
        lines = [json.dumps(self._header)]
        lines += [json.dumps([round(at, 3), "o", text]) for at, text in self._events]
        path.write_text("\n".join(lines) + "\n")
