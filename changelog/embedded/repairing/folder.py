"""Create the plan for the repair of a checked folder. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from strandline.changelog.clock import Clock
from strandline.changelog.embedded import document
from strandline.changelog.embedded.checking.folder import CheckedLog
from strandline.changelog.embedded.checking.rebuilding import partition_numbers
from strandline.changelog.embedded.checking.transactions import PartitionKey, PartitionReach
from strandline.changelog.embedded.folder import CONFIG_KIND, FOLDER_KIND, FolderMeta
from strandline.changelog.embedded.frame import FramePayload, encode_pairs
from strandline.changelog.embedded.repairing.losses import losses_of
from strandline.changelog.embedded.repairing.outcomes import outcomes_of, write_ends
from strandline.changelog.embedded.repairing.plan import RepairPlan, remove
from strandline.changelog.embedded.repairing.surgery import Surgery
from strandline.changelog.embedded.topic import COPY_KIND
from strandline.changelog.embedded.topic import KIND as CATALOG_KIND
from strandline.changelog.embedded.transaction_log import PRODUCER_IDS_KEY
from strandline.changelog.layout import (
    CATALOG,
    CLEAN,
    FOLDER_META,
    LOG_CONFIG,
    TRANSACTION_STATE,
    partition_folder,
    topic_copy,
    topic_folder,
)
from strandline.changelog.storage import Storage

SKIPPED_PRODUCER_IDS = 1_000_000
"""Number of producer ids skipped if the record of the reserved ones is lost."""

SAFE_CONFIG = {"log.retention.ms": "-1"}
"""Settings that replace lost ones: keep all records, because the lost settings may have done so."""

NOT_REPAIRABLE = (
    "producer",
    "transaction",
    "outcome",
    "epoch",
    "leader epoch",
    "durable end",
    "schema",
    "unlisted partition",
)
"""Kinds of findings that cannot be repaired from the folder's other files."""


def plan_of(
    checked: CheckedLog,
    storage: Storage,
    clock: Clock,
    reaches: Mapping[PartitionKey, PartitionReach] | None = None,
) -> RepairPlan:
    """Return the plan that repairs a folder.

    Args:
        checked: The result of the check.
        storage: The log folder.
        clock: Time and identifiers for new files.
        reaches: Minimum ends of partitions implied by the positions of stores.
    """
    plan = RepairPlan()
    for place, reach in (reaches or {}).items():
        checked.reaches[place] = max(reach, checked.reaches.get(place, reach))
    _add_folder(plan, checked, storage, clock)
    _add_side_files(plan, checked)
    outcomes = outcomes_of(checked)
    unknown: list[str] = []
    surgeries = []
    for place, scanned in checked.partitions.items():
        surgery = Surgery(scanned)
        surgery.reach = checked.reaches[place].offset
        unknown += write_ends(checked, surgery, outcomes)
        if scanned.meta.name == TRANSACTION_STATE:
            surgery.records += _producer_ids(checked, clock)
        surgeries += [surgery] if surgery.is_needed else []
    if checked.clean_wrong or (surgeries and checked.report.closed_in_order):
        what = f"remove {CLEAN}: the log will be opened as after a crash"
        plan.add(what, partial(_remove, [CLEAN]), [CLEAN])
    for surgery in surgeries:
        surgery.add_to(plan, clock)
    plan.losses = [*losses_of(checked, outcomes), *unknown]
    plan.left = [
        f"{finding.file}: {finding.what}"
        for finding in checked.report.findings
        if finding.kind in NOT_REPAIRABLE
    ]
    return plan


def _add_folder(plan: RepairPlan, checked: CheckedLog, storage: Storage, clock: Clock) -> None:
    """Plan the repair of the folder's identity, its settings and its catalog."""
    if checked.meta_lost:
        configured = checked.config_lost or storage.exists(LOG_CONFIG)
        meta = FolderMeta(clock.new_id(), clock.now_ms(), configured)
        save = partial(_save, FOLDER_META, FOLDER_KIND, meta)
        plan.add(f"create {FOLDER_META}", save, [FOLDER_META])
    if checked.config_lost:
        what = f"create {LOG_CONFIG} with settings that delete nothing by age"
        plan.add(what, partial(_save, LOG_CONFIG, CONFIG_KIND, SAFE_CONFIG), [LOG_CONFIG])
    for topic in checked.bad_copies:
        path = topic_copy(topic.topic_id)
        what = f"rewrite the copy of the catalog entry of topic {topic.name!r}"
        plan.add(what, partial(_save, path, COPY_KIND, topic), [path])
    if checked.catalog is not None:
        metas = checked.catalog.metas
        names = ", ".join(sorted(topic.name for topic in metas))
        save = partial(_save, CATALOG, CATALOG_KIND, metas)
        plan.add(f"rebuild the catalog: {names}", save, [CATALOG])
        for folder in checked.catalog.unrestorable:
            files = _files_of(storage, folder.rpartition("/")[2])
            plan.add(f"move {folder} away", partial(_remove_tree, folder), files)


def _save(path: str, kind: str, value: Any, storage: Storage, _: str) -> None:
    document.save(storage, path, kind, value)


def _remove(paths: list[str], storage: Storage, _: str) -> None:
    remove(storage, paths)


def _remove_tree(folder: str, storage: Storage, _: str) -> None:
    storage.remove_tree(folder)


def _files_of(storage: Storage, topic_id: str) -> list[str]:
    """Return all files in a topic's folder and in the folders of its partitions."""
    numbers = partition_numbers(storage, topic_id)
    folders = [partition_folder(topic_id, number) for number in numbers]
    own = [name for name in storage.list_dir(topic_folder(topic_id)) if not name.isdecimal()]
    files = [f"{topic_folder(topic_id)}/{name}" for name in own]
    return files + [f"{folder}/{name}" for folder in folders for name in storage.list_dir(folder)]


def _add_side_files(plan: RepairPlan, checked: CheckedLog) -> None:
    """Plan the removal of wrong side files, which opening the log recreates."""
    for scanned in checked.partitions.values():
        bad = scanned.bad_side_files
        if bad:
            names = ", ".join(path.rpartition("/")[2] for path in bad)
            plan.add(
                f"{scanned.topic_partition}: remove {names}",
                partial(_remove, bad),
                bad,
            )


def _producer_ids(checked: CheckedLog, clock: Clock) -> list[FramePayload]:
    """Return a record that reserves all producer ids possibly assigned; none if not needed."""
    log = checked.named(TRANSACTION_STATE)
    lost = any(finding.kind == "producer ids" for finding in checked.report.findings)
    if not lost and (log is None or not log.gaps):
        return []
    seen = [max(p.producers.entries, default=-1) for p in checked.partitions.values()]
    highest = max([*seen, *checked.transactions.names, checked.transactions.block_end])
    value = msgspec.msgpack.encode(highest + SKIPPED_PRODUCER_IDS)
    return [encode_pairs([(PRODUCER_IDS_KEY, value)], clock.now_ms())]
