"""Names of the topics and transactional ids of sinks, such as those of Spark.

A sink stages rows in topics of its own, and copies them to their topics in one transaction, which
also writes the number of the batch:

    __strandline_sinks                              the last batch of each sink, by its id
    __strandline_staging-<sink>-<target>            rows of a stream, by hashes of both
    __strandline_staging-job<ms>-<job>-<target>     rows of a batch write
    strandline-sink-<id>                            transactional id of the sink `id`

The rights of clients over TCP are checked by these names (`changelog.flight.sink_rights`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

SINKS = "__strandline_sinks"
"""Topic with the last committed batch of each sink."""
SINKS_CONFIG: Mapping[str, str] = {"cleanup.policy": "compact"}
"""Settings of that topic, which has one partition."""
STAGING = "__strandline_staging-"
"""Beginning of the names of all staging topics."""
JOB_STAGING = f"{STAGING}job"
"""Beginning of the names of those of batch writes."""
TRANSACTIONS = "strandline-sink-"
"""Beginning of the transactional ids of sinks."""


def digest_of(text: str) -> str:
    """Return the hash by which a sink or a target is named in a staging topic's name."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def staging_prefix(sink_id: str) -> str:
    """Return the beginning of the names of the staging topics of a stream's sink."""
    return f"{STAGING}{digest_of(sink_id)}-"
