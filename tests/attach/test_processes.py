"""Separate processes: kill -9, SIGSTOP, forks, and background owners."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.changelog.errors import (
    CorruptLog,
    FolderLost,
    InvalidConfig,
    LogLocked,
    OwnerUnavailable,
    StorageFailed,
    TransactionAborted,
)
from strandline.changelog.flight import background
from strandline.changelog.flight.attach import attach_or_own
from strandline.changelog.records import Append, TopicPartition

T0 = TopicPartition("t", 0)


@pytest.fixture
def attached(start, tmp_path):
    """This process, attached to an owner in another process, and that owner."""
    owner = start()
    assert owner.state == "owning"
    broker = attach_or_own(tmp_path / "log", deadline=10)
    assert not broker.owning
    broker.create_topic("t")
    yield broker, owner
    broker.close()


def prepared(tmp_path):
    """Create topic t, and return a producer for it."""
    broker = attach_or_own(tmp_path / "log")
    broker.create_topic("t")
    producer = broker.init_producer()
    broker.close()
    return producer


def values(broker):
    fetched = broker.fetch({T0: 0})[T0]
    return [int(record.value) for batch in fetched.batches for record in batch.records()]


def test_the_first_owns_and_the_others_attach(attached, start):
    broker, owner = attached
    third = start()
    assert (owner.state, third.state) == ("owning", "attached")
    assert third.ask("append 2") == "0"
    assert owner.ask("append 2") == "2"
    assert values(broker) == [0, 1, 0, 1]
    assert third.exit() == 0
    assert owner.ask("topics") == "t"


def test_one_attached_process_takes_over_from_a_killed_owner_and_the_others_follow(
    attached, start, columns
):
    broker, owner = attached
    others = [start(), start()]
    producer = broker.init_producer()
    broker.append([Append("t", 0, columns(3), producer, 0)])
    owner.kill()
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda other: other.ask("topics"), others))
    assert answers == ["t", "t"]
    broker.append([Append("t", 0, columns(2, 3), producer, 3)])
    assert others[0].ask("append 1") != ""
    assert values(broker) == [0, 1, 2, 3, 4, 0]
    assert start().state == "attached"


def test_a_transaction_open_when_the_owner_is_killed_is_reported_as_aborted(attached, columns):
    broker, owner = attached
    producer = broker.init_producer("me", timeout_ms=60_000)
    broker.append([Append("t", 0, columns(3), producer, 0, transactional=True)])
    owner.kill()
    with pytest.raises(TransactionAborted, match="call init_producer"):
        broker.end_transaction(producer, commit=True)
    assert values(broker) == []
    producer = broker.init_producer("me")
    broker.append([Append("t", 0, columns(3), producer, 0, transactional=True)])
    broker.end_transaction(producer, commit=True)
    assert values(broker) == [0, 1, 2]


@pytest.mark.long
def test_two_owners_killed_in_a_row_lose_nothing(attached, start, columns):
    broker, first = attached
    second, third = start(), start()
    producer = broker.init_producer()
    broker.append([Append("t", 0, columns(1), producer, 0)])
    first.kill()
    assert second.ask("topics") == "t"
    broker.append([Append("t", 0, columns(1, 1), producer, 1)])
    second.kill()
    assert third.ask("topics") == "t"
    broker.append([Append("t", 0, columns(1, 2), producer, 2)])
    assert values(broker) == [0, 1, 2]


def test_the_transaction_of_a_killed_client_is_aborted_at_once(attached, start, eventually):
    broker, _ = attached
    client = start()
    client.ask("begin 5")  # its transaction.timeout.ms is a minute
    assert broker.offsets([T0])[T0].last_stable_offset == 0
    client.kill()
    eventually(lambda: broker.offsets([T0])[T0].last_stable_offset == 6, timeout=5)
    assert values(broker) == []


def test_an_owner_that_closes_in_order_hands_over(attached, start):
    broker, owner = attached
    assert owner.exit() == 0
    assert [info.name for info in broker.topics() if not info.internal] == ["t"]
    assert broker.owning


@pytest.mark.parametrize("records", [1, 200_000])
def test_a_stopped_owner_is_named_within_the_deadline(start, tmp_path, records, columns):
    owner = start()
    producer = prepared(tmp_path)
    broker = attach_or_own(tmp_path / "log", deadline=0.5)
    owner.stop()
    begin = time.monotonic()
    with pytest.raises(
        OwnerUnavailable,
        match=rf"process {owner.pid}, is stopped; .*kill -9.*\(waited 0\.[5-9] s\)",
    ):
        broker.append([Append("t", 0, columns(records), producer, 0)])
    with pytest.raises(OwnerUnavailable, match=f"process {owner.pid}"):
        attach_or_own(tmp_path / "log", deadline=0.5)
    assert time.monotonic() - begin < 4
    owner.go_on()
    broker.close()
    # The abandoned append may have been carried out. The sequence numbers detect the repetition.
    again = attach_or_own(tmp_path / "log", deadline=30)
    again.append([Append("t", 0, columns(records), producer, 0)])
    assert len(values(again)) == records
    again.close()


@pytest.mark.long
def test_a_process_can_end_while_the_owner_is_stopped_in_the_middle_of_an_append(
    start, tmp_path, repository
):
    owner = start()
    producer = prepared(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, str(tmp_path / "log"), str(producer.producer_id)],
        env={**os.environ, "PYTHONPATH": f"{repository}:{repository / 'tests/attach'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout.readline() == "ready\n"
        owner.stop()
        out, _ = client.communicate("go\n", timeout=20)
    assert f"process {owner.pid}" in out
    assert client.returncode == 0


STUCK = """
import sys
from helper import columns
from strandline.changelog.errors import OwnerUnavailable
from strandline.changelog.flight.attach import attach_or_own
from strandline.changelog.records import Append, ProducerIdentity

broker = attach_or_own(sys.argv[1], deadline=0.5)
producer = ProducerIdentity(int(sys.argv[2]), 0)
print("ready", flush=True)
input()
try:
    broker.append([Append("t", 0, columns(200_000), producer, 0)])
except OwnerUnavailable as error:
    print(error)
"""


@pytest.mark.long
def test_an_owner_can_end_while_a_client_is_stopped(start):
    owner, client = start(), start()
    client.stop()
    begin = time.monotonic()
    assert owner.exit() == 0
    assert time.monotonic() - begin < 15
    client.go_on()
    assert client.ask("topics") == "-"


def test_a_transaction_over_a_short_stall_commits(attached, columns):
    broker, owner = attached
    producer = broker.init_producer("me")
    broker.append([Append("t", 0, columns(1), producer, 0, transactional=True)])
    owner.stop()
    with ThreadPoolExecutor() as pool:
        ending = pool.submit(broker.end_transaction, producer, commit=True)
        owner.go_on()
        assert ending.result(10).epoch > producer.epoch
    assert values(broker) == [0]


def test_role_own_is_refused_while_another_owns(attached, tmp_path):
    with pytest.raises(LogLocked, match="locked by another process"):
        attach_or_own(tmp_path / "log", role="own")
    with pytest.raises(InvalidConfig, match="attach_or_spawn"):
        attach_or_own(tmp_path / "log", role="both")


def test_a_second_opening_in_one_process_attaches_to_the_first(tmp_path):
    first = attach_or_own(tmp_path / "log")
    second = attach_or_own(tmp_path / "log")
    assert (first.owning, second.owning) == (True, False)
    first.create_topic("t")
    assert second.topic("t") == first.topic("t")
    first.close()
    assert second.topic("t").name == "t"
    assert second.owning
    second.close()


def test_the_endpoint_is_for_this_user_only_and_is_removed_with_its_owner(tmp_path):
    broker = attach_or_own(tmp_path / "log")
    made = [*(tmp_path / "log").glob("owner*")]
    assert sorted(path.suffix for path in made) == [".json", ".sock"]
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    broker.close()
    assert not [*(tmp_path / "log").glob("owner*")]


@pytest.mark.parametrize("name", ["x" * 150, "a b%20c#ü"])
def test_a_folder_whose_path_is_too_long_for_a_socket_is_served_from_a_private_folder(
    tmp_path, name
):
    folder = tmp_path / name
    first, second = attach_or_own(folder), attach_or_own(folder)
    location = json.loads((folder / "owner.json").read_text())["location"]
    private = os.path.dirname(location.removeprefix("grpc+unix://"))
    assert stat.S_IMODE(os.stat(private).st_mode) == 0o700
    first.create_topic("t")
    assert second.topic("t").name == "t"
    second.close()
    first.close()
    assert not os.path.exists(private)


# Forks ----------------------------------------------------------------------------------------

FORKING = """
import os, sys
from strandline.changelog.errors import Fenced
from strandline.changelog.flight.attach import attach_or_own

broker = attach_or_own(sys.argv[1])
child = os.fork()
if child == 0:
    for call in (broker.topics, lambda: attach_or_own(sys.argv[1])):
        try:
            call()
        except Fenced as error:
            print(error, flush=True)
    broker.close()
    del broker
    sys.exit(0)
_, status = os.waitpid(child, 0)
print(status, [t.name for t in broker.topics()][-1])
broker.close()
"""


@pytest.mark.parametrize("other_owns", [False, True], ids=["owner forks", "attached forks"])
def test_a_forked_child_is_refused_and_does_not_affect_its_parents_log(
    start, tmp_path, repository, other_owns
):
    if other_owns:
        start()
    opened = attach_or_own(tmp_path / "log")
    opened.create_topic("t")
    if not other_owns:
        opened.close()
    answer = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path / "log")],
        env={**os.environ, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    opened.close()
    lines = answer.stdout.splitlines()
    assert len(lines) == 3, answer.stderr
    assert "forked from process" in lines[0]
    assert "spawn" in lines[1]
    assert lines[2] == "0 t"


# Background owners ----------------------------------------------------------------------------


def test_a_tool_starts_a_background_owner_that_leaves_when_idle(tmp_path, eventually):
    folder = tmp_path / "log"
    tool = attach_or_own(folder, role="attach_or_spawn", idle=0.2)
    assert not tool.owning
    tool.create_topic("t")
    pid = json.loads((folder / "owner.json").read_text())["pid"]
    assert pid != os.getpid()
    other = attach_or_own(folder, role="attach_or_spawn", idle=0.2)
    assert other.topic("t").name == "t"
    tool.close()
    assert json.loads((folder / "owner.json").read_text())["pid"] == pid
    other.close()
    eventually(lambda: not (folder / "owner.json").exists(), timeout=10)
    eventually(lambda: f"process {pid} leaves" in (folder / "owner.log").read_text(), timeout=10)
    app = attach_or_own(folder)
    assert app.owning
    assert app.topic("t").name == "t"
    app.close()


@pytest.mark.long
def test_many_tools_at_once_get_one_background_owner(start, tmp_path, eventually):
    with ThreadPoolExecutor() as pool:
        tools = list(pool.map(lambda _: start("attach_or_spawn"), range(3)))
    assert {tool.state for tool in tools} == {"attached"}
    assert [tool.ask("topics") for tool in tools] == ["-"] * 3
    eventually(lambda: owners(tmp_path), timeout=60)  # it logs this once it serves
    assert len(set(owners(tmp_path))) == 1


def test_a_tool_continues_when_its_background_owner_is_killed(tmp_path):
    tool = attach_or_own(tmp_path / "log", role="attach_or_spawn", idle=0.2)
    tool.create_topic("t")
    os.kill(json.loads((tmp_path / "log/owner.json").read_text())["pid"], signal.SIGKILL)
    assert tool.topic("t").name == "t"
    assert not tool.owning
    tool.close()


@pytest.mark.damages
def test_a_background_owner_that_cannot_open_the_log_reports_why(tmp_path):
    folder = tmp_path / "log"
    attach_or_own(folder).close()
    (folder / "strandline.meta").write_bytes(b"not what was written")
    with pytest.raises(CorruptLog, match=r"strandline.meta"):
        attach_or_own(folder, role="attach_or_spawn")
    assert "strandline.meta" in (folder / "owner.log").read_text()


@pytest.mark.parametrize("role", ["own_or_attach", "attach_or_spawn"])
def test_no_log_is_made_at_the_path_of_one_that_was_moved(start, tmp_path, columns, role):
    owner = start()
    broker = attach_or_own(tmp_path / "log", deadline=10, role=role)
    broker.create_topic("t")
    producer = broker.init_producer()
    broker.append([Append("t", 0, columns(1), producer, 0)])
    (tmp_path / "log").rename(tmp_path / "moved")
    owner.kill()
    for call in (
        lambda: broker.create_topic("u"),
        lambda: broker.append([Append("t", 0, columns(1, 1), producer, 1)]),
    ):
        with pytest.raises(FolderLost, match="removed or moved"):
            call()
    assert not (tmp_path / "log").exists()
    (tmp_path / "moved").rename(tmp_path / "log")
    broker.append([Append("t", 0, columns(1, 1), producer, 1)])
    assert values(broker) == [0, 1]
    broker.close()


def test_background_owners_that_are_all_killed_are_not_started_for_ever(tmp_path, monkeypatch):
    command = [sys.executable, "-c", "import os; os.abort()"]
    spawner = background.Spawner(tmp_path / "log", 1, "os")
    (tmp_path / "log").mkdir(mode=0o700)
    (tmp_path / "log" / background.LOG_FILE).write_text("no thread could be started")
    (tmp_path / "log" / background.LOG_FILE).chmod(0o600)
    monkeypatch.setattr(spawner, "_spawn", lambda: subprocess.Popen(command))
    with pytest.raises(StorageFailed, match="signal 6, 3 times.*no thread could be started"):
        for _ in range(10):
            spawner.ensure()
            spawner._process.wait(20)


def test_a_background_owner_gives_way_to_an_existing_owner(attached, tmp_path):
    spawner = background.Spawner(tmp_path / "log", 1, "os")
    spawner.ensure()
    assert spawner._process is not None
    assert spawner._process.wait(20) == background.EXIT_LOCKED


def owners(tmp_path):
    text = (tmp_path / "log/owner.log").read_text()
    return [line.split("process ")[1].split()[0] for line in text.splitlines() if " owns " in line]


def test_a_child_process_imports_the_packages_and_the_standard_library_first(
    monkeypatch, repository
):
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    assert background.environment()["PYTHONPATH"] == f"{repository}{os.pathsep}elsewhere"
    monkeypatch.setattr("site.getsitepackages", lambda: [str(repository)])
    assert background.environment()["PYTHONPATH"] == "elsewhere"
