"""Garbage collection of a Faust worker, less often than Python's default.

Each record makes dozens of objects that live until its commit, and thousands are under way. With
Python's thresholds the collector looks at all of them again and again, for a tenth of the time.
"""

from __future__ import annotations

import gc

PYTHONS_THRESHOLDS = ((700, 10, 10), (2000, 10, 10))
"""Defaults of Python 3.11 to 3.13. An app that has chosen others keeps them."""
THRESHOLDS = (20_000, 20, 50)
"""New objects before the youngest are looked at, and such rounds before the older ones are."""


def collect_less_often() -> None:
    """Look at fewer objects less often, unless the app has tuned the collector itself.

    What exists now, when the worker starts, is not looked at any more: it lives as long.
    """
    if gc.isenabled() and gc.get_threshold() in PYTHONS_THRESHOLDS:
        gc.set_threshold(*THRESHOLDS)
        gc.freeze()
