"""URLs of Faust's broker and store settings.

strandline:///data/log          the folder /data/log
strandline://host:7070          a served log (`strandline serve`)
strandline:///data/log?on_error=skip&commit_ms=50
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from yarl import URL

from strandline.changelog.errors import InvalidConfig

RecordPolicy = Literal["fail", "skip", "dead_letter"]

COMMIT_MS = 100
"""Default milliseconds between two commits."""


@dataclass(frozen=True)
class FaustAddress:
    """A log, and the options that its URL carries."""

    log: str
    """Folder or URL of the log, as `changelog.open` takes it."""
    on_error: RecordPolicy = "fail"
    """Policy for a record whose agent raised."""
    commit_ms: int = COMMIT_MS
    """Milliseconds between two commits."""


def parse(urls: list[URL]) -> FaustAddress:
    """Return the log and options of Faust's `broker` setting. Raises InvalidConfig.

    >>> parse([URL("strandline:///data/log?on_error=skip")])
    FaustAddress(log='/data/log', on_error='skip', commit_ms=100)
    >>> parse([URL("strandline://db:7070")]).log
    'strandline://db:7070'
    """
    if len(urls) != 1:
        raise InvalidConfig(f"broker= takes one strandline:// URL, got {len(urls)}")
    url = urls[0]
    if url.scheme != "strandline":
        raise InvalidConfig(
            f"broker={str(url)!r}: Faust apps run on a folder (strandline:///path) or a served log "
            "(strandline://host:port); a Kafka cluster is not supported by this transport yet, use "
            "Faust's own kafka:// for it"
        )
    options = dict(url.query)
    on_error = options.pop("on_error", "fail")
    commit_ms = options.pop("commit_ms", str(COMMIT_MS))
    if on_error not in get_args(RecordPolicy):
        raise InvalidConfig(
            f"broker= has on_error={on_error!r}; use one of {', '.join(get_args(RecordPolicy))}"
        )
    if not commit_ms.isdecimal() or not 1 <= int(commit_ms) <= 60_000:
        raise InvalidConfig(f"broker= has commit_ms={commit_ms!r}; use a number from 1 to 60000")
    bare = url.with_query(None)
    if not url.host and options:
        raise InvalidConfig(
            f"broker= has unknown options {sorted(options)}; use on_error and commit_ms"
        )
    log = str(bare.update_query(options)) if url.host else url.path
    if not log.strip("/"):
        raise InvalidConfig(f"broker={str(url)!r} names no log; write strandline:///path/of/log")
    return FaustAddress(log, cast("RecordPolicy", on_error), int(commit_ms))
