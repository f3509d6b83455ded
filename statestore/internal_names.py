"""Endings of the names of internal topics, whose names begin with that of their app."""

from __future__ import annotations

CHANGELOG = "-changelog"
"""Ending of the changelog of a store."""
REPARTITION = "-repartition"
"""Ending of a topic that has the records of another one by another key."""
DEAD_LETTER = "-dead-letter"
"""Ending of the topic of records that a task could not handle."""
TIMERS = "-timers"
"""Ending of the name of the store that has a task's timers."""
