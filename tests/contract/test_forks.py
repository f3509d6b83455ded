"""A forked child can use nothing of its parent's log, and leaves it as it is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.docs.page import ROOT
from tests.systems import System

FORKING = """
import gc, os, sys, time

import strandline as sl
from strandline import changelog
from strandline.changelog.errors import Fenced

log = changelog.open(sys.argv[1])
topic = sys.argv[2]
log.create_topic(topic)
log.append(topic, [{"value": b"before"}])
producer, consumer = log.producer(), log.consumer(group="group")
consumer.subscribe([topic])
producer.send(topic, b"of the parent"), producer.flush()
def sent():
    future = producer.send(topic, b"of the child")
    producer.flush()
    future.result(timeout=1)


calls = {
    "topics": log.topics,
    "read": lambda: log.read(topic),
    "append": lambda: log.append(topic, [{"value": b"of the child"}]),
    "send": sent,
    "poll": lambda: consumer.poll(1.0),
    "commit": consumer.commit,
    "open": lambda: changelog.open(sys.argv[1]).topics(),
    "producer": lambda: log.producer().append(topic, [{"value": b"of the child"}]),
}
app = sl.App(topic, log=sys.argv[1], state_dir=sys.argv[3])
events = app.topic(f"{topic}-events", key=str, value=int)
counts = app.counter("counts")


@app.task(events, stores=[counts])
def count(record):
    counts.add(record.key, record.value)


events.append([("a", 1)])
app.run(until="idle")
calls |= {
    "run": lambda: app.run(until="idle", timeout=5),
    "events": lambda: events.append([("a", 1)]),
    "query": lambda: app.query(counts)["a"],
}
child = os.fork()
if child == 0:
    for name, call in calls.items():
        begun = time.monotonic()
        try:
            call()
        except Exception as error:
            print(name, type(error).__name__, time.monotonic() - begun < 2, error, flush=True)
        else:
            print(name, "done", flush=True)
    begun = time.monotonic()
    consumer.close()
    producer.close()
    log.close()
    app.close()
    print("close", time.monotonic() - begun < 2, flush=True)
    del producer, consumer, log, app, calls
    gc.collect()
    os._exit(0)  # as multiprocessing does: RocksDB's own exit handler waits for threads it lost
_, status = os.waitpid(child, 0)
producer.send(topic, b"after"), producer.flush()
events.append([("a", 1)])
app.run(until="idle")
found = log.read(topic)["value"].to_pylist()
print("parent", status, found, app.query(counts)["a"], flush=True)
"""


def test_a_forked_child_gets_fenced_and_its_parent_goes_on(system: System) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, system.url, f"{system.prefix}t", str(system.state)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    *child, parent = done.stdout.splitlines()
    assert parent == "parent 0 [b'before', b'of the parent', b'after'] 2", done.stdout + done.stderr
    assert child.pop() == "close True"
    told = {line.split()[0]: line.split()[1:3] for line in child}
    if system.is_kafka:
        assert told.pop("open") == ["done"]
    assert set(map(tuple, told.values())) == {("Fenced", "True")}, done.stdout
    assert {"topics", "read", "append", "send", "poll", "commit", "run", "query"} < set(told)


FORKING_WHILE_OPENING = """
import os, sys, threading, time

import strandline as sl
from strandline.changelog.errors import StrandlineError
from strandline.framework import session

app = sl.App("app", log=sys.argv[1], state_dir=sys.argv[2])
events = app.topic(sys.argv[3], value=int)
opening, go_on = threading.Event(), threading.Event()
open_log = session._open


def slow(*given):
    opening.set()
    go_on.wait()
    return open_log(*given)


session._open = slow
thread = threading.Thread(target=lambda: events.append([(None, 1)]))
thread.start()
opening.wait()
child = os.fork()
if child == 0:
    session._open = open_log
    try:
        events.append([(None, 2)])
    except StrandlineError as error:
        print(type(error).__name__, flush=True)
    os._exit(0)
go_on.set()
deadline = time.monotonic() + 20
while os.waitpid(child, os.WNOHANG) == (0, 0):
    if time.monotonic() > deadline:
        os.kill(child, 9)
        print("the child hangs")
    time.sleep(0.01)
thread.join()
events.append([(None, 3)])
print(sorted(set(events.to_polars()["value"]) - {2}))
"""


@pytest.mark.long
def test_a_child_that_is_forked_while_the_log_is_opened_does_not_wait_for_it(
    system: System,
) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            FORKING_WHILE_OPENING,
            system.url,
            str(system.state),
            f"{system.prefix}t",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "hangs" not in done.stdout
    assert done.stdout.endswith("[1, 3]\n"), (done.stdout, done.stderr)
