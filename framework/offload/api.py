"""The load of a topic, as programs and the command line call it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import (
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    TypedDict,
    Unpack,
    get_args,
)

from strandline import changelog
from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.location import is_url, log_around, shown
from strandline.changelog.log import Log
from strandline.changelog.records import TopicInfo
from strandline.changelog.settings import check_choice
from strandline.changelog.storage import Storage
from strandline.framework.offload import delta, iceberg
from strandline.framework.offload.files import FileLimits
from strandline.framework.offload.folder import Claim, TargetFolder, claimed
from strandline.framework.offload.loader import Loading, LoadSettings, OffloadReport, load
from strandline.framework.offload.parquet import ParquetTarget
from strandline.framework.offload.periods import VISIBLE
from strandline.framework.offload.progress import NEWEST, VERSION
from strandline.framework.offload.rows import RowForm, row_form
from strandline.framework.offload.table_limits import check_path, check_table
from strandline.framework.offload.target import PartitionBy, Target
from strandline.framework.topic import Topic
from strandline.framework.topic_declaration import TopicDeclaration

Progress: TypeAlias = Callable[[int, int], object]
Format = Literal["parquet", "delta", "iceberg"]

DataLoss = Literal["fail", "continue"]


@dataclass(frozen=True, kw_only=True)
class OffloadOptions:
    """Options of a load; `offload` describes them."""

    format: Format = "parquet"
    partition_by: PartitionBy = "none"
    max_file_bytes: int = 256 << 20
    max_file_rows: int = 10_000_000
    commit_records: int = 10_000_000
    tasks: int | None = None
    on_data_loss: DataLoss = "fail"
    table: str | None = None
    catalog: Mapping[str, str] | None = None

    def check(self) -> None:
        """Raise InvalidConfig for a value that is not allowed."""
        for name, allowed in _ALLOWED.items():
            check_choice(name, getattr(self, name), allowed)
        for name in ("max_file_bytes", "max_file_rows", "commit_records", "tasks"):
            got = getattr(self, name)
            if got is not None and got < 1:
                raise InvalidConfig(f"{name} is at least 1, got {got!r}")
        if self.format != "iceberg" and (self.table is not None or self.catalog):
            raise InvalidConfig(f"table and catalog are for iceberg, and format is {self.format!r}")
        if self.table is not None:
            check_table(self.table, nested=bool(self.catalog))

    @property
    def settings(self) -> LoadSettings:
        """Settings of the run."""
        limits = FileLimits(self.max_file_bytes, self.max_file_rows)
        tasks = self.tasks or os.cpu_count() or 1
        return LoadSettings(limits, self.commit_records, tasks, self.on_data_loss == "continue")


_ALLOWED = {
    "format": get_args(Format),
    "partition_by": get_args(PartitionBy),
    "on_data_loss": get_args(DataLoss),
}


def offload(
    topic: str | Topic[Any, Any],
    to: str | os.PathLike[str],
    *,
    log: str | os.PathLike[str] | Log | None = None,
    progress: Progress | None = None,
    **options: Unpack[OptionArguments],
) -> OffloadReport:
    """Load the committed records of a topic into files or a table, each record once.

    The first call loads what the topic has, and each later call what has come since. The offsets
    are committed with the files, so that a call after a crash continues without duplicates and gaps.

    Args:
        topic: Name of the topic, whose keys and values are loaded as the log has them; or a topic
            that an app declares, whose keys and values are decoded.
        to: Folder of the files, created if it does not exist. It belongs to one topic.
        log: Log with the topic: a folder, a URL, or an open log. Required for a name; a declared
            topic has that of its app.
        progress: Called with the number of records read so far, and of offsets to be read.
        **options: See `OffloadOptions` for the defaults.
            format: "parquet", "delta" or "iceberg".
            partition_by: "none", or files by the "day" or "hour" of the records' timestamps (UTC).
            max_file_bytes: Size at which a file is closed.
            max_file_rows: Number of rows at which a file is closed.
            commit_records: Maximum number of offsets of a partition in one commit.
            tasks: Number of partitions that are loaded at a time; by default that of processors.
            on_data_loss: "fail", or "continue" after records that were removed before the load.
            table: Namespace and name of an Iceberg table in its catalog, as "sales.trips"; by default
                "default.<topic>".
            catalog: Properties of the Iceberg catalog, as PyIceberg names them; by default a SQLite
                file in `to`.

    Returns:
        Number of rows, files, bytes and commits that were added, and accepted gaps.

    Raises:
        UnknownTopic: There is no such topic.
        InvalidConfig: An option has no such value, or the folder is for something else.
        InvalidRequest: The topic has another history than the one that was loaded, or another
            program has changed the table; nothing was changed.
        OffsetOutOfRange: Records were removed before they were loaded; nothing was changed.
        SchemaMismatch: The columns do not extend those of the target; nothing was changed.
        InvalidRecord: A record cannot be decoded as declared.
        LogLocked: Another load into the folder is running.
        MissingDependency: The package for the format is not installed.
        StorageFailed: The file system refused an operation.

    >>> import tempfile
    >>> from strandline import changelog
    >>> with tempfile.TemporaryDirectory() as folder, changelog.open(f"{folder}/log") as log:
    ...     _ = log.create_topic("t")
    ...     _ = log.append("t", [{"key": b"k", "value": b"v"}])
    ...     offload("t", f"{folder}/lake", log=log).rows, offload("t", f"{folder}/lake", log=log).rows
    (1, 0)
    """
    chosen = OffloadOptions(**options)
    chosen.check()
    path = _local(to)
    name = topic if isinstance(topic, str) else topic.name
    declared = None if isinstance(topic, str) else topic
    with _broker_of(topic, log) as broker:
        place = Place(path, LocalStorage(path), SystemClock())
        return run(broker, name, declared, place, chosen, progress or _unseen)


class OptionArguments(TypedDict, total=False):
    """Options of `offload`."""

    format: Format
    partition_by: PartitionBy
    max_file_bytes: int
    max_file_rows: int
    commit_records: int
    tasks: int | None
    on_data_loss: DataLoss
    table: str | None
    catalog: Mapping[str, str] | None


class Place(NamedTuple):
    """A folder for the files, and the clock of the process."""

    path: Path
    """Absolute path, for libraries that open files themselves."""
    storage: Storage
    clock: Clock


def run(
    broker: Broker,
    topic: str,
    declared: TopicDeclaration | None,
    place: Place,
    options: OffloadOptions,
    progress: Progress,
) -> OffloadReport:
    """Load a topic from an open log; `offload` describes the rest."""
    described = broker.topic(topic)
    partitions = described.topic_partitions
    ends = {tp.partition: bounds for tp, bounds in broker.offsets(partitions).items()}
    # After the ends, so that it knows the columns of every record before them.
    info = broker.topic(topic)
    form = row_form(info, declared)
    _INSTALLED[options.format]()
    _check_outside(place.path)
    check_path(place.path, options.format)
    with (
        claimed(place.storage, _claim(info, options), str(place.path)) as folder,
        _target(folder, place, info, form, options) as target,
    ):
        loading = Loading(broker, info, form, folder, target, options.settings)
        return load(loading, ends, place.clock, progress)


def _claim(info: TopicInfo, options: OffloadOptions) -> Claim:
    table = options.table or f"default.{info.name.replace('.', '_')}"
    visible = options.format == "parquet" and options.partition_by != "none"
    return Claim(
        version=NEWEST if visible else VERSION,
        topic=info.name,
        topic_id=info.topic_id,
        format=options.format,
        partition_by=options.partition_by,
        table=table if options.format == "iceberg" else "",
        period_prefix=VISIBLE if visible else "_",
    )


@contextlib.contextmanager
def _target(
    folder: TargetFolder, place: Place, info: TopicInfo, form: RowForm, options: OffloadOptions
) -> Iterator[Target]:
    match options.format:
        case "parquet":
            yield ParquetTarget(folder)
        case "delta":
            yield delta.DeltaTarget(folder, place.path, info.partitions, place.clock)
        case "iceberg":
            with iceberg.opened_catalog(place.path, options.catalog or {}) as catalog:
                yield iceberg.IcebergTarget(folder, place.path, catalog, form.time)


_INSTALLED: Mapping[Format, Callable[[], None]] = {
    "parquet": lambda: None,
    "delta": delta.check_installed,
    "iceberg": iceberg.check_installed,
}


def _local(to: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a folder. Raise InvalidConfig for a URL."""
    if is_url(to):
        raise InvalidConfig(
            f"{shown(os.fspath(to))} is not a local folder, and files are written to one; load into a folder, "
            "and copy it from there"
        )
    return Path(os.path.abspath(to))


def _check_outside(path: Path) -> None:
    """Raise InvalidConfig for a folder in that of a log, which removes what its topics leave."""
    if (log := log_around(path)) is not None:
        raise InvalidConfig(
            f"{path} is in the folder of the log {log}, where files are removed with their topic or "
            "store; give a folder outside of it"
        )


@contextlib.contextmanager
def _broker_of(
    topic: str | Topic[Any, Any], log: str | os.PathLike[str] | Log | None
) -> Iterator[Broker]:
    """Yield the log of a topic, and close it afterwards if it was opened for this."""
    if not isinstance(topic, str):
        if log is not None:
            raise InvalidConfig(f"{topic!r} has the log of its app; leave out log=")
        topic.session.prepare_topic(topic.name)
        yield topic.session.broker()
    elif isinstance(log, Log):
        yield log.broker
    elif log is None:
        raise InvalidConfig(f"which log has topic {topic!r}? Give log=, a folder or a URL")
    else:
        with changelog.open(log, role="attach_or_spawn", create=False) as opened:
            yield opened.broker


def _unseen(_done: int, _total: int) -> None:
    """Show no progress."""
