"""The committed offsets of consumer groups, compared with the ends of their partitions."""

from __future__ import annotations

from strandline.changelog.embedded.checking.findings import CheckReport, Severity
from strandline.changelog.embedded.checking.scanned import ScannedPartition
from strandline.changelog.embedded.checking.transactions import (
    PartitionKey,
    PartitionReach,
    Partitions,
)
from strandline.changelog.embedded.offsets import Change, GroupPartition, parsed

GroupFacts = dict[GroupPartition, Change]
"""Last commit of each group and partition, including deletions."""


def read_groups(log: ScannedPartition | None) -> GroupFacts:
    """Read the last commits from `__consumer_offsets`."""
    facts: GroupFacts = {}
    if log is not None:
        for batch in log.committed():
            for record in batch.records():
                key, value = parsed(record)
                facts[key] = (record.offset, value)
    return facts


def check_groups(
    report: CheckReport, partitions: Partitions, facts: GroupFacts
) -> dict[PartitionKey, PartitionReach]:
    """Check committed offsets; return the minimum end of each partition that they imply.

    A committed offset was read, hence the partition reached it, and it must not be assigned again.
    """
    reaches: dict[PartitionKey, PartitionReach] = {}
    for (group, tp), (_, value) in facts.items():
        if value is None or (value.topic_id, tp.partition) not in partitions:
            continue
        place = (value.topic_id, tp.partition)
        reach = PartitionReach(value.offset, f"the committed offset of group {group!r}")
        reaches[place] = max(reach, reaches.get(place, reach))
        end = partitions[place].next_offset
        if value.offset > end:
            report.add(
                Severity.REPAIRABLE,
                "group offset",
                partitions[place].folder,
                f"group {group!r} continues at offset {value.offset}, but the partition ends at "
                f"{end}: records were lost, or the group's offset was set by hand",
                partition=tp,
                offsets=(end, value.offset),
                way_out="reset the group (`strandline groups reset`), or run `strandline repair`, "
                "after which the partition continues above that offset",
            )
        elif value.incarnation and (
            problem := partitions[place].offsets().reading_divergence(value)
        ):
            report.add(
                Severity.REPAIRABLE,
                "group offset",
                partitions[place].folder,
                f"group {group!r} continues at offset {value.offset}, but {problem}: the partition, or "
                f"the groups' offsets, were restored from a copy without the other",
                partition=tp,
                offsets=(value.offset, value.offset),
                way_out="restore the whole log folder from one copy, or reset the group "
                "(`strandline groups reset`)",
            )
    return reaches
