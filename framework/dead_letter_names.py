"""Names of the headers of a dead letter, which follow those of its record.

Tasks write the first group, and the adapter for Faust, whose topics of dead letters end with
`FAUST_DEAD_LETTER`, the second.
"""

from __future__ import annotations

ERROR_TYPE = "error.type"
ERROR_MESSAGE = "error.message"
ERROR_TRACEBACK = "error.traceback"
ERROR_LEFT_OUT = "error.left_out"
"""Parts of the letter or of its record for which the log had no room."""
ORIGIN = "origin"
TOPIC_ID = "topic_id"

FAUST_DEAD_LETTER = ".dead-letter"
FAUST_ERROR = "strandline.error"
FAUST_ORIGIN = "strandline"


def origin_headers(
    origin: str, topic: str, topic_id: str, partition: int, offset: int
) -> dict[str, str]:
    """Return the headers that say where the record is. The topic's id is that of the present one.

    >>> origin_headers(ORIGIN, "sales", "5f0c", 0, 17)  # doctest: +NORMALIZE_WHITESPACE
    {'origin.topic': 'sales', 'origin.topic_id': '5f0c', 'origin.partition': '0',
    'origin.offset': '17'}
    """
    found = {"topic": topic, TOPIC_ID: topic_id, "partition": str(partition)}
    found["offset"] = str(offset)
    return {f"{origin}.{name}": text for name, text in found.items()}
