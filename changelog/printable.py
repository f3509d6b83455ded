"""Text for terminals and messages: safe to print, and not too long."""

from __future__ import annotations

import re

MAX_VALUE_CHARS = 100
"""Maximum number of characters of a value in an error."""


def printable(text: str) -> str:
    """Replace characters that a terminal would act on, or show misleadingly, by JSON escapes.

    These are control characters (except tab and newline), characters that change the direction of
    writing or are invisible, and lone surrogates. Joiners and variation selectors stay, because
    scripts and emoji need them. A JSON document remains the same document.

    >>> printable("\\x1b[31mred\\x9b2J"), printable("über\\tα 😀")
    ('\\\\u001b[31mred\\\\u009b2J', 'über\\tα 😀')
    """
    if text.isascii() and text.isprintable():
        return text
    return _ACTED_ON.sub(_escaped, text)


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters; "…" replaces what is left out.

    >>> shortened("a long text", 6), shortened("short", 6)
    ('a lon…', 'short')
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shown_value(value: object) -> str:
    """Return a value and its type for an error.

    >>> shown_value("ten")
    "'ten' (str)"
    """
    return f"{shortened(repr(value), MAX_VALUE_CHARS)} ({type(value).__name__})"


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


_ACTED_ON = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0, DEL and C1, except tab and newline
    "\xad\u034f\u061c\u115f\u1160\u180e\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff\ud800-\udfff"
    "]"
)
