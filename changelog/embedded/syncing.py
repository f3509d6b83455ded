"""Making what was appended to several partitions durable, at once."""

from __future__ import annotations

from collections.abc import Collection

from changelog.embedded.environment import Environment
from changelog.embedded.partition import Partition
from changelog.errors import StrandlineError


def sync_all(
    environment: Environment, partitions: Collection[Partition]
) -> dict[Partition, StrandlineError]:
    """Sync several partitions at once; those that failed, with the reason.

    With durability "os" there is nothing to wait for.
    """
    if environment.durability == "os":
        return {}
    waiting = [partition for partition in partitions if not partition.retired]
    results = environment.at_once(_sync, waiting)
    return {p: error for p, error in zip(waiting, results, strict=True) if error is not None}


def _sync(partition: Partition) -> StrandlineError | None:
    try:
        partition.sync()
    except StrandlineError as error:
        return None if partition.retired else error
    return None
