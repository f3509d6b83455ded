"""Short and long forms of tests: the suite is to end within minutes, and every night has hours."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

LONG = os.environ.get("STRANDLINE_LONG") == "1"
"""True if the long forms are to run: `make test` with STRANDLINE_LONG=1, every night in CI."""


def by_form(short: T, long: T) -> T:
    """Return what the form that runs needs."""
    return long if LONG else short
