"""Names cannot lead out of the folder: through the API, over the wire, or in the shell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from strandline import changelog
from strandline.changelog.embedded import document
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import CorruptLog, InvalidConfig, InvalidRequest, InvalidTopic
from strandline.changelog.flight.client import FlightBroker
from strandline.changelog.flight.connection_target import ConnectionTarget
from strandline.changelog.layout import CATALOG
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.records import CommittedOffset, TopicPartition
from strandline.framework.app import App
from strandline.framework.cli import main
from strandline.statestore import StoreSpec

T0 = TopicPartition("t", 0)

NO_FOLDERS = [
    "", ".", "..", "../x", "a/b", "/etc", "a\0b", "a\nb", "a b", "x" * 300, "a\\b", "~", "a:b", "*",
    "．．", "∕", "ａ", "а", "\u202ea", "é", "\ud800",
]  # fmt: skip
"""Names that no folder may have: dots, slashes, zeros, look-alikes in other scripts."""

UNPRINTABLE = ["", "a\0b", "a\nb", "\x1b[2J", "\u202ea", "\ud800", "x" * 1001]
"""Names that are refused because a list would not show them, or show something else."""

ODD = ["..", "../../x", "/etc/passwd", "é", "a b", "__x"]
"""Names of groups and producers, which become no files: all of these are allowed."""


@pytest.fixture(params=["in process", "over the wire"])
def broker(
    request: pytest.FixtureRequest, owner: Owner, target: ConnectionTarget
) -> Iterator[Owner | FlightBroker]:
    if request.param == "in process":
        yield owner
        return
    attached = FlightBroker(target, deadline=30)
    yield attached
    attached.close()


@pytest.fixture
def nothing_outside(tmp_path: Path) -> Iterator[None]:
    """Check that nothing next to the log's folder is created or removed."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    before = {*tmp_path.rglob("*")} - {*(tmp_path / "log").rglob("*")}
    yield
    after = {*tmp_path.rglob("*")} - {*(tmp_path / "log").rglob("*")}
    assert {p for p in after ^ before if p.name not in ("s", "log")} == set()


@pytest.mark.usefixtures("nothing_outside")
@pytest.mark.parametrize("name", NO_FOLDERS, ids=ascii)
def test_invalid_topic_names_are_refused(broker: Owner | FlightBroker, name: str) -> None:
    if name.isascii() or "\ud800" not in name or isinstance(broker, Owner):
        for internal in (False, True):
            with pytest.raises(InvalidTopic):
                broker.create_topic(name, 1, internal=internal)


@pytest.mark.parametrize("name", ["__new", "__consumer_offsets", "__transaction_state"])
def test_reserved_topic_names_are_refused(broker: Owner | FlightBroker, name: str) -> None:
    with pytest.raises(InvalidTopic, match="reserved"):
        broker.create_topic(name, 1)


def test_system_topics_cannot_be_deleted(broker: Owner | FlightBroker) -> None:
    for name in ("__consumer_offsets", "__transaction_state"):
        with pytest.raises(InvalidTopic):
            broker.delete_topic(name)
        with pytest.raises(InvalidTopic):
            broker.delete_records(TopicPartition(name, 0), 1)


@pytest.mark.parametrize("name", [name for name in UNPRINTABLE if name != "\ud800"], ids=ascii)
def test_unprintable_names_of_groups_and_producers_are_refused(
    broker: Owner | FlightBroker, name: str
) -> None:
    with pytest.raises(InvalidConfig, match="printable"):
        broker.init_producer(name)
    with pytest.raises(InvalidConfig, match="printable"):
        broker.commit_offsets(name, {T0: CommittedOffset(0)})
    producer = broker.init_producer("tx")
    with pytest.raises(InvalidConfig, match="printable"):
        broker.add_offsets(producer, name, {T0: CommittedOffset(0)})


def test_lone_surrogates_are_refused(owner: Owner) -> None:
    with pytest.raises(InvalidConfig):
        owner.init_producer("\ud800")
    with pytest.raises(InvalidConfig):
        owner.commit_offsets("\ud800", {T0: CommittedOffset(0)})
    with pytest.raises(InvalidRequest, match="metadata"):
        owner.commit_offsets("g", {T0: CommittedOffset(0, "\ud800")})


@pytest.mark.usefixtures("nothing_outside")
@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_groups_and_producers_may_have_any_printable_name(
    broker: Owner | FlightBroker, name: str
) -> None:
    broker.init_producer(name)
    broker.commit_offsets(name, {T0: CommittedOffset(0, "m")})
    assert broker.groups() == [name]
    assert broker.committed(name)[T0].metadata == "m"


def test_metadata_is_bounded(broker: Owner | FlightBroker) -> None:
    with pytest.raises(InvalidRequest, match="at most 32768 characters"):
        broker.commit_offsets("g", {T0: CommittedOffset(0, "x" * 32_769)})


@pytest.mark.parametrize("name", [*NO_FOLDERS, "__x", "x" * 101], ids=ascii)
def test_invalid_names_of_apps_and_stores_are_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match="cannot be an app's name"):
        App(name)
    if name != "__x":
        with pytest.raises(InvalidConfig, match="cannot be a store's name"):
            StoreSpec(name, key=str, value=int)


Command = Callable[..., int]


@pytest.fixture
def strandline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Function that runs `strandline …` on the test's log, which has a store. Returns the exit
    status."""
    with changelog.open(tmp_path / "log", durability="os") as log:
        log.create_topic("t")
        (tmp_path / "log" / "state" / "shop" / "s").mkdir(parents=True)
        monkeypatch.setenv("STRANDLINE_LOG", str(tmp_path / "log"))

        def run(*arguments: str) -> int:
            with pytest.raises(SystemExit) as exit_:
                main(arguments)
            return int(exit_.value.code or 0)

        yield run


@pytest.mark.usefixtures("nothing_outside")
@pytest.mark.parametrize(
    "how", ["..", ".", "../..", "../topics", "absolute", "shop/../..", "shop/s"]
)
def test_an_app_to_be_reset_cannot_name_another_folder(
    strandline: Command, tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = str(tmp_path / "precious") if how == "absolute" else how
    assert strandline("reset", name, "--state", "--yes") != 0
    assert "cannot be an app's name" in capsys.readouterr().err
    assert (tmp_path / "log" / "state" / "shop" / "s").exists()
    assert (tmp_path / "log" / "topics").exists()


@pytest.mark.usefixtures("nothing_outside")
@pytest.mark.parametrize("name", ["../x", "/etc", "..", "a/b"])
def test_commands_refuse_invalid_topic_names(strandline: Command, name: str) -> None:
    assert strandline("topics", "create", name) != 0
    assert strandline("topics", "delete", name, "--yes") != 0
    assert strandline("stores", "get", f"shop/{name}", "k") != 0


@pytest.mark.damages
@pytest.mark.parametrize("topic_id", ["../../../precious", "..", "", "/tmp", "a" * 31, "A" * 32])
def test_a_catalog_with_paths_for_topic_ids_is_damage(tmp_path: Path, topic_id: str) -> None:
    """A path in a catalog is rejected even with the right checksum."""
    storage = LocalStorage(tmp_path / "log")
    owner = Owner(storage, background=False)
    owner.create_topic("t", 1)
    owner.close()
    metas = document.load(storage, CATALOG, "topics", list[dict[str, object]])
    metas[-1]["topic_id"] = topic_id
    document.save(storage, CATALOG, "topics", metas)
    with pytest.raises(CorruptLog, match=r"topics\.meta.*strandline repair"):
        Owner(storage, background=False)
    assert sorted(os.listdir(tmp_path)) == ["log"]


@pytest.mark.damages
@pytest.mark.parametrize("partitions", [0, -1, 10**12])
def test_a_catalog_with_impossible_numbers_is_damage(tmp_path: Path, partitions: int) -> None:
    storage = LocalStorage(tmp_path / "log")
    owner = Owner(storage, background=False)
    owner.create_topic("t", 1)
    owner.close()
    metas = msgspec.to_builtins(document.load(storage, CATALOG, "topics", list[dict[str, object]]))
    metas[-1]["partitions"] = partitions
    document.save(storage, CATALOG, "topics", metas)
    with pytest.raises(CorruptLog, match="partitions"):
        Owner(storage, background=False)
