"""A page of the documentation: its blocks, and the comparison of their output with the page.

A block of code is one of

    ```python              runs, after those above it, in one namespace and one folder
    ```python spark        the same, if Spark is installed
    ```python kafka        the same, if there is a Kafka, which replaces kafka://localhost:9092
    ```python spark kafka  the same, if there are both
    ```python              whose first line is `# name.py`: that file
    ```console             lines `$ …` are run; they exit with 0, or with the status in a comment
                           `# exit code 1`; the other lines are their output
    ```sh                  is only read; options of `strandline …` must exist
    ```text                directly after python: the output of that block

In output `…` stands for any text, alone on a line for any lines. White space does not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```(?P<kind>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")
_COMMAND = re.compile(r"(.*?)(?:  # exit code (\d+))?\n(.*)", re.DOTALL)
_FILE = re.compile(r"# ([\w-]+\.py)\n")


class Command(NamedTuple):
    """A command of a console block, with its expected output."""

    line: str
    code: str
    """Expected exit code."""
    prints: str


@dataclass(frozen=True)
class Block:
    """One block of code of a page."""

    kind: str
    text: str
    where: str
    """Page and line, for messages."""
    line: int
    prints: str | None = None
    """Output that the page shows."""

    @property
    def file(self) -> str | None:
        """Name of the file that the block contains; None if it is no file."""
        found = _FILE.match(self.text) if self.kind.startswith("python") else None
        return found[1] if found else None

    @property
    def commands(self) -> list[Command]:
        """Commands of a console block."""
        parts = re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]
        return [Command(*re.match(_COMMAND, part).groups("0")) for part in parts]  # type: ignore[union-attr]


def name_of(page: Path) -> str:
    """Return the path of a page as used in test ids: docs/cli.md."""
    return str(page.relative_to(ROOT))


def blocks_of(page: Path) -> list[Block]:
    """Return all blocks of a page, in order."""
    source = page.read_text()
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(source):
        kind, text = match["kind"].strip(), match["text"]
        line = source.count("\n", 0, match.start()) + 1
        follows = not source[end : match.start()].strip() and bool(found)
        if kind == "text" and follows and found[-1].kind.startswith("python"):
            last = found.pop()
            found.append(Block(last.kind, last.text, last.where, last.line, prints=text))
        else:
            found.append(Block(kind, text, f"{name_of(page)}:{line}", line))
        end = match.end()
    return found


def links_of(page: Path) -> Iterator[str]:
    """Yield the targets of a page's links, without those to other sites."""
    prose = _FENCE.sub("", page.read_text())
    yield from (target for target in _LINK.findall(prose) if "://" not in target)


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


def is_what_came(shown: str, said: str) -> bool:
    """Return True if the output matches the text that a page shows.

    >>> is_what_came("a  1\\n…\\nz …", "a 1\\nb\\nc\\nz 26"), is_what_came("a", "b")
    (True, False)
    """
    parts = [
        r"(?:.*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.split("…"))) + r"\n"
        for line in _lines(shown)
    ]
    return re.fullmatch("".join(parts), "".join(f"{line}\n" for line in _lines(said))) is not None


def _lines(text: str) -> list[str]:
    """Return the lines that are not empty, with single spaces."""
    squeezed = (" ".join(line.split()) for line in text.splitlines())
    return [line for line in squeezed if line.strip("─━═- ")]
