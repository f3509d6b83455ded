"""URLs of Faust's broker and store settings.

strandline:///data/log                          the folder /data/log
strandline://host:7070                          a served log (`strandline serve`)
strandline+kafka://host:9092,host2:9092         an Apache Kafka cluster
strandline:///data/log?on_error=skip&commit_ms=50

Faust splits the setting at commas and semicolons, so in the options these are percent-encoded.
Options that are not of this package belong to the log: those of a served log, or properties of
librdkafka (changelog/kafka/address.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, cast, get_args
from urllib.parse import quote

from yarl import URL

from strandline.changelog.errors import InvalidConfig
from strandline.changelog.location import is_kafka, options_of, shown

RecordPolicy = Literal["fail", "skip", "dead_letter"]

FOLDER_OR_SERVED = "strandline"
KAFKA = "strandline+kafka"
COMMIT_MS = 100
"""Default milliseconds between two commits."""


@dataclass(frozen=True)
class FaustAddress:
    """A log, and the options that its URL carries."""

    log: str = field(repr=False)
    """Folder or URL of the log, as `changelog.open` takes it. It may contain secrets."""
    on_error: RecordPolicy = "fail"
    """Policy for a record whose agent raised."""
    commit_ms: int = COMMIT_MS
    """Milliseconds between two commits."""

    @property
    def is_kafka(self) -> bool:
        """True if the log is a Kafka cluster."""
        return is_kafka(self.log)


def parse(urls: list[URL]) -> FaustAddress:
    """Return the log and options of Faust's `broker` setting. Raises InvalidConfig.

    >>> parse([URL("strandline:///data/log?on_error=skip")])
    FaustAddress(on_error='skip', commit_ms=100)
    >>> parse([URL("strandline://db:7070")]).log
    'strandline://db:7070'
    >>> parse([URL("strandline+kafka://a:9092"), URL("strandline+kafka://b:9092")]).log
    'kafka://a:9092,b:9092'
    """
    schemes = {url.scheme for url in urls}
    given = ", ".join(shown(str(url)) for url in urls)
    if not schemes <= {FOLDER_OR_SERVED, KAFKA} or len(schemes) != 1:
        raise InvalidConfig(
            f"broker= is {given}; use strandline:///path (a folder), strandline://host:port (a "
            "served log), or strandline+kafka://host:port,host:port (a Kafka cluster)"
        )
    if any(url.raw_query_string for url in urls[:-1]):
        raise InvalidConfig(
            f"broker= is {given}, with options before its last host; write all options at the end, "
            "commas in them as %2C, and semicolons as %3B"
        )
    options = options_of(urls[-1].raw_query_string)
    on_error = options.pop("on_error", "fail")
    commit_ms = options.pop("commit_ms", str(COMMIT_MS))
    if on_error not in get_args(RecordPolicy):
        raise InvalidConfig(
            f"broker= has on_error={on_error!r}; use one of {', '.join(get_args(RecordPolicy))}"
        )
    if not commit_ms.isdecimal() or not 1 <= int(commit_ms) <= 60_000:
        raise InvalidConfig(f"broker= has commit_ms={commit_ms!r}; use a number from 1 to 60000")
    log = _cluster(urls, given) if KAFKA in schemes else _folder_or_served(urls, options, given)
    return FaustAddress(log + _query(options), cast("RecordPolicy", on_error), int(commit_ms))


def _cluster(urls: list[URL], given: str) -> str:
    """Return the URL of a cluster, without options."""
    hosts = [url.raw_authority for url in urls]
    if not all(hosts) or any(url.raw_path.strip("/") for url in urls):
        raise InvalidConfig(
            f"broker= is {given}; write strandline+kafka://host:port,host:port, without a path"
        )
    return f"kafka://{','.join(hosts)}"


def _folder_or_served(urls: list[URL], options: dict[str, str], given: str) -> str:
    """Return the path of a folder, or the URL of a served log without options."""
    if len(urls) != 1:
        raise InvalidConfig(f"broker= takes one strandline:// URL, got {given}")
    url = urls[0]
    if not url.host and options:
        raise InvalidConfig(
            f"broker= has unknown options {sorted(options)}; use on_error and commit_ms"
        )
    log = str(url.with_query(None)) if url.host else url.path
    if not log.strip("/"):
        raise InvalidConfig(f"broker= is {given}, which names no log; write strandline:///path")
    return log


def _query(options: dict[str, str]) -> str:
    pairs = (f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in options.items())
    return f"?{'&'.join(pairs)}" if options else ""
