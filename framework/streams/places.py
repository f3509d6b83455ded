"""Place in a user's code that declares a part of a stream, for errors and descriptions."""

from __future__ import annotations

import os
import sys
from types import FrameType

from strandline.changelog.errors import InvalidConfig

_OURS = "strandline."
"""Beginning of the names of this package's own modules."""


def user_place() -> str:
    """Return file and line of the innermost caller outside of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_OURS):
        frame = frame.f_back
    if frame is None:
        return "<unknown>"
    return f"{_shortened(frame.f_code.co_filename)}:{frame.f_lineno}"


def refusal(operator: str, problem: str) -> InvalidConfig:
    """Return the error for a declaration, with the place of it.

    Args:
        operator: Operator as the user wrote it, such as "filter".
        problem: Description of what is wrong, and of the fix.
    """
    return InvalidConfig(f"{user_place()}: {operator}: {problem}")


def _shortened(path: str) -> str:
    """Return a path relative to the current folder if it is below it."""
    here = os.getcwd() + os.sep
    return path.removeprefix(here)
