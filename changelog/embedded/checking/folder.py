"""The check of a whole log folder: its identity, its catalog, its folders, and every partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.config import TopicConfig
from strandline.changelog.embedded import document
from strandline.changelog.embedded.checking.findings import CheckReport, Severity
from strandline.changelog.embedded.checking.groups import GroupFacts, check_groups, read_groups
from strandline.changelog.embedded.checking.partition import CheckContext, check_partition
from strandline.changelog.embedded.checking.rebuilding import (
    RebuiltCatalog,
    partition_numbers,
    rebuilt_catalog,
)
from strandline.changelog.embedded.checking.scanned import ScannedPartition
from strandline.changelog.embedded.checking.transactions import (
    PartitionKey,
    PartitionReach,
    TransactionFacts,
    check_reaches,
    check_transactions,
    read_transactions,
)
from strandline.changelog.embedded.folder import (
    CLEAN_KIND,
    FOLDER_KIND,
    ClosedSizes,
    FolderMeta,
    log_config,
)
from strandline.changelog.embedded.pins import pins_in, whole_pin
from strandline.changelog.embedded.topic import KIND as CATALOG_KIND
from strandline.changelog.embedded.topic import TopicMeta, forgotten_topics
from strandline.changelog.errors import CorruptLog, FutureFormat, InvalidConfig, cause
from strandline.changelog.layout import (
    CATALOG,
    CLEAN,
    CONSUMER_OFFSETS,
    FOLDER_META,
    LOG_CONFIG,
    TOPICS,
    TRANSACTION_STATE,
    partition_folder,
    pin_folder,
    topic_copy,
    topic_folder,
)
from strandline.changelog.schema import decode_schemas
from strandline.changelog.storage import Storage

OnProgress = Callable[[int, int], None]
"""Called with the bytes of segments read so far, and the total bytes of segments."""

PIN_WAY_OUT = "opening the log removes it; its reader gets an error"


@dataclass
class CheckedLog:
    """The result of a check: the report, and the state from which a repair is planned."""

    report: CheckReport
    metas: list[TopicMeta] = field(default_factory=list)
    """Topics of the catalog, or of the rebuilt catalog."""
    partitions: dict[PartitionKey, ScannedPartition] = field(default_factory=dict)
    transactions: TransactionFacts = field(default_factory=TransactionFacts)
    groups: GroupFacts = field(default_factory=dict)
    reaches: dict[PartitionKey, PartitionReach] = field(default_factory=dict)
    """Minimum end of each partition, according to other files."""
    meta_lost: bool = False
    """True if the folder's identity is missing or cannot be read."""
    catalog: RebuiltCatalog | None = None
    """Rebuilt catalog, if the catalog is missing or cannot be read."""
    clean_wrong: bool = False
    """True if the record of a clean shutdown cannot be read or is wrong."""
    config_lost: bool = False
    """True if the settings of the log are missing, cannot be read or contradict a topic's."""
    bad_copies: list[TopicMeta] = field(default_factory=list)
    """Topics whose copy of the catalog entry cannot be read."""

    def named(self, topic: str, number: int = 0) -> ScannedPartition | None:
        """Return a partition by its topic's name; None if it does not exist."""
        for scanned in self.partitions.values():
            if (scanned.meta.name, scanned.number) == (topic, number):
                return scanned
        return None


def check_log(
    storage: Storage,
    *,
    clock: Clock | None = None,
    on_progress: OnProgress | None = None,
) -> CheckedLog:
    """Read and verify a whole log folder that no process has open; change nothing.

    Args:
        storage: The log folder.
        clock: The current time, by which expired producers are recognized; the system's by default.
        on_progress: Called with the bytes read so far and the total.

    Returns:
        The findings, and the state from which a repair is planned.

    Raises:
        FutureFormat: A file was written by a later version.
        StorageFailed: The disk failed.
    """
    checked = CheckedLog(CheckReport())
    _check_meta(storage, checked)
    closed = _read_closed(storage, checked)
    checked.metas = _read_catalog(storage, checked)
    _check_config(storage, checked)
    _check_folders(storage, checked, closed)
    total = sum(_log_bytes(storage, meta) for meta in checked.metas)
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress(done, total)

    context = CheckContext(storage, clock or SystemClock(), checked.report, on_bytes, closed)
    for meta in checked.metas:
        _check_topic(context, checked, meta)
    _check_across(checked)
    _check_pins(storage, checked.report)
    return checked


def _check_across(checked: CheckedLog) -> None:
    """Compare partitions with the transaction log, with committed offsets, and with one another."""
    report, partitions = checked.report, checked.partitions
    checked.transactions = read_transactions(report, checked.named(TRANSACTION_STATE))
    check_transactions(report, partitions, checked.transactions)
    checked.groups = read_groups(checked.named(CONSUMER_OFFSETS))
    checked.reaches = dict(checked.transactions.reaches)
    for place, scanned in partitions.items():
        start = PartitionReach(scanned.manifest.log_start, "its own start")
        checked.reaches[place] = max(start, checked.reaches.get(place, start))
    check_reaches(report, partitions, checked.reaches)
    for place, reach in check_groups(report, partitions, checked.groups).items():
        checked.reaches[place] = max(reach, checked.reaches.get(place, reach))


def _check_meta(storage: Storage, checked: CheckedLog) -> None:
    """Check the file with the folder's identity."""
    try:
        document.load(storage, FOLDER_META, FOLDER_KIND, FolderMeta)
    except FileNotFoundError:
        if not storage.exists(CATALOG) and not storage.list_dir(TOPICS):
            return  # the folder never held a log
        problem = "is missing"
    except FutureFormat:
        raise
    except CorruptLog as error:
        problem = f"cannot be read: {cause(error)}"
    else:
        return
    checked.meta_lost = True
    # The lost meta said whether the log has settings. Without it, a missing file may be a lost one.
    checked.config_lost = not storage.exists(LOG_CONFIG)
    checked.report.add(
        Severity.REPAIRABLE,
        "folder",
        FOLDER_META,
        problem,
        way_out="run `strandline repair`, which creates it with a new log id",
    )


def _read_closed(storage: Storage, checked: CheckedLog) -> ClosedSizes | None:
    """Return the sizes recorded by a clean shutdown; None if there was none."""
    try:
        closed = document.load(storage, CLEAN, CLEAN_KIND, ClosedSizes)
    except FileNotFoundError:
        return None
    except FutureFormat:
        raise
    except CorruptLog as error:
        checked.clean_wrong = True
        checked.report.add(Severity.REPAIRABLE, "clean", CLEAN, f"cannot be read: {cause(error)}")
        return None
    checked.report.closed_in_order = True
    return closed


# The catalog ---------------------------------------------------------------------------


def _read_catalog(storage: Storage, checked: CheckedLog) -> list[TopicMeta]:
    """Return the topics of the catalog, or of a rebuilt one if the catalog is lost."""
    try:
        metas = document.load(storage, CATALOG, CATALOG_KIND, list[TopicMeta])
        for meta in metas:
            TopicConfig.parse(meta.config)
            decode_schemas(meta.schemas, f"topic {meta.name}")
        forgotten = forgotten_topics(storage, {meta.topic_id for meta in metas})
        if not forgotten:
            return metas
        problem = (
            f"does not list the topic in {forgotten[0]}, which has records: it is of another log or "
            f"from an earlier time"
        )
    except FileNotFoundError:
        if not storage.list_dir(TOPICS):
            return []
        problem = "is missing though there are topics"
    except FutureFormat:
        raise
    except InvalidConfig as error:
        problem = f"cannot be read: {error}"
    except CorruptLog as error:
        problem = f"cannot be read: {cause(error)}"
    checked.catalog = rebuilt = rebuilt_catalog(storage)
    lost = [meta.name for meta in rebuilt.without_settings]
    checked.report.add(
        Severity.DAMAGE if lost or rebuilt.unrestorable else Severity.REPAIRABLE,
        "catalog",
        CATALOG,
        problem + (f"; the settings of {', '.join(lost)} are lost" if lost else ""),
    )
    for folder, why in rebuilt.unrestorable.items():
        checked.report.add(Severity.DAMAGE, "topic", folder, f"cannot be in the catalog: {why}")
    return rebuilt.metas


def _check_config(storage: Storage, checked: CheckedLog) -> None:
    """Check that the settings of the log can be read and do not contradict a topic's."""
    problem = _config_problem(storage, checked.metas)
    if problem is None:
        return
    checked.config_lost = True
    what = f"{problem}; the settings of the log as a whole are lost"
    checked.report.add(Severity.DAMAGE, "settings", LOG_CONFIG, what)


def _config_problem(storage: Storage, metas: Sequence[TopicMeta]) -> str | None:
    """Describe the problem with the settings of the log; None if there is none."""
    try:
        config = log_config(storage)
    except FutureFormat:
        raise
    except CorruptLog as error:
        return f"cannot be read: {cause(error)}"
    for meta in metas:
        try:
            config.topic(meta.config)
        except InvalidConfig as error:
            return f"contradicts the settings of topic {meta.name!r}: {error}"
    return None


def _check_folders(storage: Storage, checked: CheckedLog, closed: ClosedSizes | None) -> None:
    """Check that folders and the sizes recorded by a clean shutdown belong to listed topics."""
    report = checked.report
    known = {meta.topic_id for meta in checked.metas}
    left = checked.catalog.unrestorable if checked.catalog is not None else {}
    for topic_id in storage.list_dir(TOPICS):
        folder = topic_folder(topic_id)
        if topic_id not in known and folder not in left:
            what = (
                "belongs to no topic in the catalog: a crash interrupted a deletion or a creation"
            )
            report.add(Severity.NOTE, "unlisted topic", folder, what)
    folders = {partition_folder(m.topic_id, n) for m in checked.metas for n in range(m.partitions)}
    unknown = sorted((closed or {}).keys() - folders)
    if unknown:
        checked.clean_wrong = True
        what = f"has a size for {unknown[0]}, which is not a partition"
        report.add(Severity.REPAIRABLE, "clean", CLEAN, what)


def _check_topic(context: CheckContext, checked: CheckedLog, meta: TopicMeta) -> None:
    """Check all partitions of a topic."""
    context.report.topics += 1
    _check_copy(context, checked, meta)
    schemas = decode_schemas(meta.schemas, f"topic {meta.name}")
    for number in range(meta.partitions):
        scanned = check_partition(context, meta, number, schemas)
        checked.partitions[meta.topic_id, number] = scanned
        checked.clean_wrong |= _is_clean_wrong(scanned)
    for number in partition_numbers(context.storage, meta.topic_id):
        if number >= meta.partitions:
            context.report.add(
                Severity.DAMAGE,
                "unlisted partition",
                partition_folder(meta.topic_id, number),
                f"is beyond the {meta.partitions} partitions of topic {meta.name!r} in the catalog",
                way_out="restore the catalog that lists it; `strandline repair` does not change it",
            )


def _is_clean_wrong(scanned: ScannedPartition) -> bool:
    """Return True if the active segment differs in size from the record of the clean shutdown."""
    active = scanned.segments[-1] if scanned.segments else None
    return scanned.closed and active is not None and active.file_size != active.expected_size


def _check_copy(context: CheckContext, checked: CheckedLog, meta: TopicMeta) -> None:
    """Compare a topic's copy of its catalog entry with the catalog."""
    path = topic_copy(meta.topic_id)
    try:
        copy = TopicMeta.load_copy(context.storage, meta.topic_id)
    except FileNotFoundError:
        context.report.add(Severity.NOTE, "topic copy", path, "is missing")
    except FutureFormat:
        raise
    except CorruptLog as error:
        checked.bad_copies.append(meta)
        context.report.add(
            Severity.REPAIRABLE, "topic copy", path, f"cannot be read: {cause(error)}"
        )
    else:
        if copy != meta:
            what = "differs from the catalog: a crash interrupted a change"
            context.report.add(Severity.NOTE, "topic copy", path, what)


def _log_bytes(storage: Storage, meta: TopicMeta) -> int:
    """Return the total bytes of a topic's segment files."""
    total = 0
    for number in range(meta.partitions):
        folder = partition_folder(meta.topic_id, number)
        for name in storage.list_dir(folder):
            if name.endswith(".log"):
                with closing(storage.open(f"{folder}/{name}")) as file:
                    total += file.size()
    return total


def _check_pins(storage: Storage, report: CheckReport) -> None:
    """Note incomplete pins, which are no loss of the log. Raises FutureFormat."""
    for name in pins_in(storage):
        try:
            whole_pin(storage, name)
            continue
        except FileNotFoundError:
            what = "is incomplete: a crash interrupted its creation or removal"
        except FutureFormat:
            raise
        except CorruptLog as error:
            what = f"cannot be read: {cause(error)}"
        report.add(Severity.NOTE, "pin", pin_folder(name), what, way_out=PIN_WAY_OUT)
