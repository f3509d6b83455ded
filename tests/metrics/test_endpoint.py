"""The endpoint exists during the run, at a free address, and has the documented metrics."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.clock import SystemClock
from strandline.changelog.embedded import metrics as of_the_log
from strandline.changelog.embedded.cleaning import schedule
from strandline.changelog.flight import metrics as of_the_part
from strandline.changelog.flight.serve import serve
from strandline.changelog.metrics import Metric, MetricReading, exposition
from strandline.framework import metrics as endpoints
from strandline.framework.container import gauges, metrics
from strandline.framework.supervisor import metrics as of_workers
from strandline.framework.supervisor.metrics import Workers
from strandline.framework.supervisor.slots import WorkerRow
from strandline.framework.testing import TestDriver
from tests.metrics.running import running
from tests.metrics.scraping import Family, parsed, scrape
from tests.workers.processes import Process, ending

Eventually = Callable[..., None]
PAGE = Path(__file__).parents[2] / "docs/guide/metrics.md"
ALL: tuple[Metric, ...] = (
    *(*of_the_log.METRICS, *schedule.METRICS, *of_the_part.METRICS),
    *(*metrics.METRICS, *gauges.METRICS, *of_workers.METRICS),
)
ROW = re.compile(r"\| `(strandline_\w+)` \| (\w+) \| ([\w, ]*)\| [^|]+ \| [^|]+ \|")
ANY = "127.0.0.1:0"


# Documentation ---------------------------------------------------------------------------------


def documented() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return type and labels of each metric in the documentation."""
    rows = [
        ROW.fullmatch(line) for line in PAGE.read_text().splitlines() if "| `strandline_" in line
    ]
    return {row[1]: (row[2], tuple(filter(None, re.split(r",? ", row[3])))) for row in rows if row}


def test_the_page_matches_the_code() -> None:
    assert len({metric.name for metric in ALL}) == len(ALL)
    assert documented() == {metric.name: (metric.kind, metric.labels) for metric in ALL}


def test_exactly_the_documented_metrics_are_exported(
    tmp_path: Path, eventually: Eventually
) -> None:
    scraped: dict[str, Family] = {}
    with (
        closing(serve(tmp_path / "log", listen=ANY, token="sixteen-or-more-characters")) as served,
        changelog.open(tmp_path / "log") as log,
        running(log, tmp_path / "state", standby_replicas=1) as one,
        running(log, tmp_path / "state", standby_replicas=1) as two,
    ):
        one.made.words.append([(f"{n}", n) for n in range(40)])
        for exports in (one.exports, two.exports):
            eventually(partial(exports, 4, "strandline_partitions", state="standby"))
            eventually(partial(exports, 0, "strandline_lag_records"))
            eventually(partial(exports, 0, "strandline_standby_lag_records"))
        workers = Workers("words", 2)
        workers.note([WorkerRow(0, 1, "running", (), 1, 0.0, 1, {"words": 0}, 0, None)])
        of_others = [*served.metrics(), *workers.metrics(), *of_a_stream()]
        for seen in (one.scraped(), two.scraped(), parsed(exposition(of_others))):
            scraped |= seen.families
    page = documented()
    assert scraped.keys() == page.keys()
    assert {name: family.kind for name, family in scraped.items()} == {n: page[n][0] for n in page}
    assert {n: f.labels() for n, f in scraped.items()} == {
        n: {labels} for n, (_, labels) in page.items()
    }


def of_a_stream() -> list[MetricReading]:
    """Return the metrics that only a stage of streams has."""
    app = sl.App("windows")
    words = app.stream(app.topic("words", value=str))
    words.group_by("key").window(sl.tumbling("1m")).agg(n=sl.count(), name="counts")
    with TestDriver(app) as driver:
        driver.run([("a", "x")])
        own = (gauges.WATERMARK, gauges.OPEN_WINDOWS)
        return [one for one in driver.worker.metrics() if one.metric in own]


# The endpoint of a run -------------------------------------------------------------------------


class Secretive:
    """An app whose handler scrapes the endpoint while it runs."""

    def __init__(self, folder: Path) -> None:
        self.url = ""
        self.page = ""
        self.app = sl.App("secretive", log=str(folder), durability="os", commit_records=1)
        self.words = self.app.topic("words", value=str, partitions=1)
        self.seen = self.app.store("seen", value=str)
        self.app.task(self.words, stores=[self.seen], name="look", on_error="skip")(self.look)
        self.words.append([("hidden-key", "hidden-value"), ("hidden-key", "again")])

    def look(self, record: sl.Record[str, str]) -> None:
        self.seen[record.key] = record.value
        with urllib.request.urlopen(self.url, timeout=30) as answer:
            self.page = answer.read().decode()
        if record.value == "hidden-value":
            raise ValueError("hidden-message")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secretive]:
    made = Secretive(tmp_path / "log")

    def note(record: logging.LogRecord) -> bool:
        if found := re.search(r"http://\S+", record.getMessage()):
            made.url = found[0]
        return True

    log = logging.getLogger("strandline")
    level = log.level
    log.addFilter(note)
    log.setLevel(logging.INFO)
    yield made
    log.setLevel(level)
    log.removeFilter(note)
    made.app.close()


def test_owner_and_worker_are_shown_together_while_the_app_runs(made: Secretive) -> None:
    assert made.app.run("idle", metrics=ANY) == 2
    seen = parsed(made.page)
    assert seen("strandline_log_owned") == 1
    assert seen("strandline_log_appended_records_total", topic="words") == 2
    assert seen("strandline_records_handled_total", app="secretive", task="look") <= 2
    assert seen("strandline_partitions", app="secretive", state="held") == 1
    assert "hidden" not in made.page


def test_the_endpoint_ends_with_the_run(made: Secretive) -> None:
    made.app.run("idle", metrics=ANY)
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(made.url, timeout=5)
    port = made.url.split(":")[2].split("/")[0]
    assert made.app.run("idle", metrics=f"127.0.0.1:{port}") == 0


def test_an_address_in_use_is_an_error_at_the_start(made: Secretive) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(sl.InvalidConfig, match=f"127.0.0.1:{port}: Address already in use"):
            made.app.run("idle", metrics=f"127.0.0.1:{port}")
    assert made.app.run("idle", metrics=ANY) == 2  # nothing was begun


@pytest.mark.parametrize(
    "address", ["", "nowhere:none", "1.2.3.4:99999", "user@host:1", "host:1/metrics", "http://x:1"]
)
def test_an_invalid_address_is_refused(address: str, made: Secretive) -> None:
    with pytest.raises(sl.InvalidConfig, match="HOST:PORT"):
        made.app.run("idle", metrics=address)


def test_an_address_of_another_machine_is_refused(made: Secretive) -> None:
    with pytest.raises(sl.InvalidConfig, match="address of this machine"):
        made.app.run("idle", metrics="192.0.2.1:0")


def test_other_paths_are_not_found() -> None:
    with endpoints.served(ANY, list) as url, pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(url.replace("/metrics", "/"), timeout=30)
    assert error.value.code == 404
    error.value.close()


def dial(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.split(":")[2].split("/")[0])), 10)


def test_silent_clients_delay_neither_other_clients_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoints, "CLIENT_TIMEOUT_S", 3_600.0)
    with contextlib.ExitStack() as held:
        with endpoints.served(ANY, list) as url:
            for _ in range(endpoints.MAX_CLIENTS_EACH - 1):
                held.enter_context(dial(url)).sendall(b"GET /metr")
            assert scrape(url).families == {}
        with pytest.raises(urllib.error.URLError, match="refused"):
            urllib.request.urlopen(url, timeout=5)


def test_a_client_that_sends_too_slowly_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoints, "CLIENT_TIMEOUT_S", 0.3)
    pause = threading.Event()
    with endpoints.served(ANY, list) as url, dial(url) as client:
        for _ in range(1_000):
            try:
                client.sendall(b"x")
            except OSError:
                return
            pause.wait(0.01)
        pytest.fail("it was waited for, though it never finished")


def test_the_number_of_simultaneous_clients_is_bounded(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(endpoints, "MAX_CLIENTS_EACH", 2)
    with endpoints.served(ANY, list) as url, contextlib.ExitStack() as held:
        for _ in range(2):
            held.enter_context(dial(url))
        with dial(url) as third:
            assert third.recv(1) == b""
        held.close()

        def is_served() -> bool:
            with contextlib.suppress(OSError):
                return scrape(url).families == {}
            return False

        eventually(is_served, what="room for another")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"GET /metrics?x=1 HTTP/1.0\r\nHost: x\r\n\r\n", b"200"),
        (b"GET /" + b"x" * (1 << 15) + b" HTTP/1.1\r\n\r\n", b""),
    ],
)
def test_invalid_requests_are_refused(request_: bytes, status: bytes) -> None:
    with endpoints.served(ANY, list) as url, dial(url) as client:
        with contextlib.suppress(OSError):
            client.sendall(request_)
        try:
            answer = client.recv(1 << 16)
        except ConnectionResetError:
            answer = b""
    assert answer[9:12] == status


def test_readings_that_fail_are_an_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Any:
        raise ValueError("not now")

    with endpoints.served(ANY, fail) as url, pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(url, timeout=30)
    assert error.value.code == 500
    error.value.close()
    assert "not now" in caplog.text


class Gated:
    """Readings that are made only while the gate is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.calls = 0

    def __call__(self) -> list[Any]:
        self.calls += 1
        assert self.open.wait(30)
        return []


def asking(url: str) -> socket.socket:
    client = dial(url)
    client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    return client


def waiting(endpoint: endpoints.MetricsEndpoint) -> int:
    return endpoint._answers._next.wanted


def test_clients_that_wait_share_one_answer(eventually: Eventually) -> None:
    collect = Gated()
    endpoint = endpoints.MetricsEndpoint(ANY, collect)
    with contextlib.ExitStack() as end:
        end.callback(endpoint.close)
        clients = [end.enter_context(asking(endpoint.url)) for _ in range(3)]
        eventually(lambda: waiting(endpoint) == 3, what="the requests")
        collect.open.set()
        assert [client.recv(1 << 16)[9:12] for client in clients] == [b"200"] * 3
        assert collect.calls == 1
        assert scrape(endpoint.url).families == {}, "and the next one is made anew"
        assert collect.calls == 2


def test_clients_that_wait_for_slow_readings_keep_no_other_out(eventually: Eventually) -> None:
    collect = Gated()
    endpoint = endpoints.MetricsEndpoint(ANY, collect)
    with contextlib.ExitStack() as end:
        end.callback(endpoint.close)
        end.callback(collect.open.set)
        each = endpoints.MAX_CLIENTS_EACH
        first = end.enter_context(asking(endpoint.url))
        eventually(lambda: waiting(endpoint) == 1, what="the first request")
        others = [end.enter_context(asking(endpoint.url)) for _ in range(each)]
        assert first.recv(1) == b"", "it makes room for the last one"
        eventually(lambda: waiting(endpoint) == each, what="the last request")
        collect.open.set()
        assert [client.recv(1 << 16)[9:12] for client in others] == [b"200"] * each


@pytest.mark.parametrize(("took", "pause"), [(0.5, 1.5), (60.0, 3.0)])
def test_there_is_a_pause_after_each_answer(
    took: float, pause: float, eventually: Eventually
) -> None:
    """Therefore no number of requests takes a whole core."""
    pauses = list[float]()

    class Steps(SystemClock):
        now = 0.0

        def monotonic(self) -> float:
            self.now += took
            return self.now

    class Closed(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return self.is_set()

    answers = endpoints._SharedAnswers(list, Steps())
    answers._closed = Closed()
    assert answers.next(lambda: True).startswith(b"HTTP/1.1 200")
    eventually(lambda: pauses == [pause], what="the pause")
    answers.close()


# Processes -------------------------------------------------------------------------------------

SHOP = """
import strandline as sl

app = sl.App("shop", commit_interval_ms=10)
sales = app.topic("sales", value=int, partitions=4)
totals = app.store("totals", value=int, default=0)


@app.task(sales, stores=[totals])
def add(record):
    totals[record.key] += record.value
"""


class Commands:
    """`strandline …` as processes, each with metrics at its own address."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self._folder = folder
        (folder / "shop.py").write_text(SHOP)
        self.processes: list[Process] = []

    def start(self, *arguments: str, metrics: str = ANY) -> Process:
        said = self._folder / f"said-{len(self.processes)}"
        command = ["strandline", *arguments, "--metrics", metrics]
        self.processes.append(Process(command, said))
        return self.processes[-1]

    def run(self, *options: str, metrics: str = ANY) -> Process:
        app, log = f"{self._folder}/shop.py:app", str(self.log)
        return self.start("run", app, "--log", log, *options, metrics=metrics)


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    made = Commands(tmp_path)
    with ending(made.processes):
        yield made


def url_of(process: Process) -> str:
    """Return the URL of a process's metrics; empty until it has logged it."""
    found = re.search(r"metrics are at (\S+)", process.text())
    return found[1] if found else ""


def number(url: str, name: str, **labels: Any) -> float:
    """Return the value of a metric; 0 if it does not exist yet."""
    try:
        return scrape(url)(name, **labels) if url else 0
    except KeyError:
        return 0


def scraped(process: Process, name: str, **labels: Any) -> float:
    return number(url_of(process), name, **labels)


def is_at(ask: Callable[..., float], wanted: float, name: str, **labels: Any) -> bool:
    return ask(name, **labels) == wanted


@pytest.mark.long
def test_each_process_exports_its_own_metrics_only(
    commands: Commands, eventually: Eventually
) -> None:
    owner = commands.start("serve", str(commands.log), "--create")
    eventually(lambda: scraped(owner, "strandline_log_owned"))
    one, two = commands.run(), commands.run()
    for worker in (one, two):
        eventually(
            partial(is_at, partial(scraped, worker), 2, "strandline_partitions", state="held")
        )
    with changelog.open(commands.log) as log:
        log.append("sales", [{"key": b"%d" % n, "value": b"\x01"} for n in range(1_000)])
    handled = [
        partial(scraped, worker, "strandline_records_handled_total") for worker in (one, two)
    ]
    eventually(lambda: handled[0]() + handled[1]() == 1_000)
    assert all(0 < count() < 1_000 for count in handled)
    for worker in (one, two):
        families = scrape(url_of(worker)).families
        assert [name for name in families if "_log_" in name] == [
            "strandline_log_owned",
            "strandline_log_takeovers_total",
        ]
        assert scraped(worker, "strandline_log_owned") == 0
    seen = scrape(url_of(owner))
    assert seen("strandline_log_clients", over="socket") == 2
    assert seen("strandline_log_appended_records_total", topic="sales") == 1_000
    assert all("_log_" in name for name in seen.families)
    assert [process.end() for process in (one, two, owner)] == [0, 0, 0]


def test_a_command_whose_address_is_in_use_ends_with_an_error(commands: Commands) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = (
            commands.run(metrics=address),
            commands.start("serve", str(commands.log), "--create", metrics=address),
        )
        for process in refused:
            assert process.ended() == 1
            assert f"InvalidConfig: metrics cannot be served at {address}" in process.text()


def test_a_supervisor_exports_metrics_of_the_log_and_each_worker_its_own(
    commands: Commands, eventually: Eventually
) -> None:
    supervisor = commands.run("--workers", "2")

    def urls() -> list[str]:
        """Return all URLs. The supervisor's comes first, because workers start when it is ready."""
        return re.findall(r"metrics are at (\S+)", supervisor.text())

    eventually(lambda: len(urls()) == 3)
    log, *workers = (partial(number, url) for url in urls())
    for worker in workers:
        eventually(partial(is_at, worker, 2, "strandline_partitions", state="held"))
    with changelog.open(commands.log) as opened:
        opened.append("sales", [{"key": b"%d" % n, "value": b"\x01"} for n in range(500)])
    handled = "strandline_records_handled_total"
    eventually(lambda: sum(worker(handled) for worker in workers) == 500)
    assert log("strandline_log_appended_records_total", topic="sales") == 500
    assert [each("strandline_log_owned") for each in (log, *workers)] == [1, 0, 0]
    exports = partial(is_at, log)
    for state in ("wanted", "alive", "running"):
        eventually(partial(exports, 2, "strandline_workers", state=state))
    eventually(partial(exports, 500, "strandline_workers_records_total", app="shop"))
    eventually(partial(exports, 0, "strandline_workers_lag_records", topic="sales"))
    assert supervisor.end() == 0


@pytest.mark.long
def test_a_supervisor_on_kafka_exports_metrics_of_its_workers(
    commands: Commands, kafka: str, name: str, tmp_path: Path, eventually: Eventually
) -> None:
    shop = SHOP.replace('"shop"', f"{name!r}, log={kafka!r}, state_dir={str(tmp_path)!r}")
    (tmp_path / "shop.py").write_text(shop.replace('sales"', f'{name}-sales"'))
    supervisor = commands.start("run", f"{tmp_path}/shop.py:app", "--workers", "2")
    exports = partial(is_at, partial(scraped, supervisor))
    for state in ("wanted", "alive", "running"):
        eventually(partial(exports, 2, "strandline_workers", app=name, state=state))
    assert not [one for one in scrape(url_of(supervisor)).families if "_log_" in one]
    assert supervisor.end() == 0


def test_a_supervisor_checks_the_ports_after_its_own(commands: Commands) -> None:
    refused = commands.run("--workers", "2", metrics="127.0.0.1:65534")
    assert refused.ended() == 1
    assert "choose one up to 65533" in refused.text()
