"""Describe what a damaged log has lost: records, transactions, offsets of groups."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.changelog.embedded.checking.folder import CheckedLog
from strandline.changelog.embedded.checking.scanned import RecordGap, ScannedPartition
from strandline.changelog.embedded.repairing.outcomes import Outcomes
from strandline.changelog.layout import CONSUMER_OFFSETS, TRANSACTION_STATE

MAX_LISTED_NAMES = 20
"""Maximum number of names listed; further ones are only counted."""


def losses_of(checked: CheckedLog, outcomes: Outcomes) -> Iterator[str]:
    """Yield a description of each loss."""
    for place, scanned in checked.partitions.items():
        for gap in scanned.gaps:
            if gap.until is None or gap.until > scanned.manifest.log_start:
                yield _records(checked, scanned, gap)
        reach = checked.reaches.get(place)
        if reach is not None and reach.offset > scanned.next_offset:
            yield (
                f"{scanned.topic_partition}: the records between offset {scanned.end} and "
                f"{reach.offset}, according to {reach.because}"
            )
    yield from _transactions(checked, outcomes)
    yield from _groups(checked)
    yield from _topics(checked)


def _records(checked: CheckedLog, scanned: ScannedPartition, gap: RecordGap) -> str:
    """Describe the records lost in a gap, and their producers if known."""
    end = "the end of the log" if gap.until is None else f"offset {gap.until - 1}"
    names = {
        checked.transactions.name(header.producer_id)
        for header in gap.headers
        if header.producer_id >= 0
    }
    by = f", of {_listed(names)}" if names else ""
    return f"{scanned.topic_partition}: the records from offset {gap.first} to {end}{by}"


def _transactions(checked: CheckedLog, outcomes: Outcomes) -> Iterator[str]:
    """Describe the transactions affected by losses of the transaction log."""
    log = checked.named(TRANSACTION_STATE)
    if log is None or not log.gaps:
        return
    yield (
        f"{log.topic_partition}: a transaction committed in those records stays committed, in all "
        f"its partitions, if one of them has its marker"
    )
    for scanned in checked.partitions.values():
        for producer_id in scanned.producers.open_producers:
            epoch = scanned.producers.epoch(producer_id)
            if (producer_id, epoch) not in outcomes.known:
                first = scanned.producers.open_since(producer_id)
                yield (
                    f"{scanned.topic_partition}: the transaction of "
                    f"{checked.transactions.name(producer_id)} from offset {first} on: it will be "
                    f"aborted even if it was committed"
                )


def _groups(checked: CheckedLog) -> Iterator[str]:
    """Describe the committed offsets affected by losses of `__consumer_offsets`."""
    log = checked.named(CONSUMER_OFFSETS)
    for gap in log.gaps if log is not None else ():
        old = {
            f"{group} in {tp} (at {value.offset})"
            for (group, tp), (offset, value) in checked.groups.items()
            if value is not None and offset < gap.first
        }
        yield (
            "committed offsets: these groups may continue from an earlier offset, and process "
            f"records twice: {_listed(old) or 'none that are known'}; a group whose only commit was lost "
            "starts over"
        )


def _topics(checked: CheckedLog) -> Iterator[str]:
    """Describe lost settings and topics."""
    if checked.config_lost:
        yield (
            "the settings of the log as a whole, if there were any: set them with `strandline "
            "config set`; until then topics without a retention.ms of their own keep all records"
        )
    if checked.catalog is not None:
        for meta in checked.catalog.without_settings:
            yield (
                f"topic {meta.name!r}: its settings and schemas, and any empty partitions beyond "
                f"{meta.partitions}; set them with `strandline topics alter`"
            )
        for folder, why in checked.catalog.unrestorable.items():
            yield f"{folder}: a topic that cannot be restored in the catalog: {why}"


def _listed(names: set[str]) -> str:
    shown = sorted(names)[:MAX_LISTED_NAMES]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
