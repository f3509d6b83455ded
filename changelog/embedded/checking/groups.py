"""The committed offsets of consumer groups, against the partitions that they are of."""

from __future__ import annotations

from strandline.changelog.embedded.checking.findings import CheckReport, Severity
from strandline.changelog.embedded.checking.scanned import ScannedPartition
from strandline.changelog.embedded.checking.transactions import PartitionReach, Partitions, Place
from strandline.changelog.embedded.offsets import Change, GroupPartition, parsed

GroupFacts = dict[GroupPartition, Change]
"""The last commit of each group and partition, deletions too."""


def read_groups(log: ScannedPartition | None) -> GroupFacts:
    """What `__consumer_offsets` says."""
    facts: GroupFacts = {}
    if log is not None:
        for batch in log.committed():
            for record in batch.records():
                key, value = parsed(record)
                facts[key] = (record.offset, value)
    return facts


def check_groups(
    report: CheckReport, partitions: Partitions, facts: GroupFacts
) -> dict[Place, PartitionReach]:
    """Hold offsets against ends; how far partitions must go, since somebody has read that far."""
    reaches: dict[Place, PartitionReach] = {}
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
                f"group {group!r} goes on at offset {value.offset}, the partition ends at {end}: "
                f"records were lost, or somebody has put the group there by hand",
                partition=tp,
                offsets=(end, value.offset),
                way_out="reset the group (`strandline groups reset`), or run `strandline repair`, "
                "which lets the partition go on behind that offset",
            )
        elif value.incarnation and (
            problem := partitions[place].offsets().reading_divergence(value)
        ):
            report.add(
                Severity.REPAIRABLE,
                "group offset",
                partitions[place].folder,
                f"group {group!r} goes on at offset {value.offset}, but {problem}: the partition, or "
                f"the groups' offsets, were put back from a copy without the other",
                partition=tp,
                offsets=(value.offset, value.offset),
                way_out="put the whole log folder back from one copy, or reset the group "
                "(`strandline groups reset`)",
            )
    return reaches
