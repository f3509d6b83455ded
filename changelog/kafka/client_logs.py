"""Filter for librdkafka's log lines and events.

librdkafka repeats messages by the hundred, in every client of a connection. Therefore each kind is
logged at once, and then at most once in EVERY_SECONDS, with the number of messages skipped.

    WARNING    problems that need attention and that only librdkafka reports: no broker answers,
               authentication, TLS, a client with a fatal error
    INFO       problems that librdkafka solves itself, or that the affected call raises (`_ITS_OWN`)

Nothing is logged as a warning before the first answer of a cluster, because opening the log raises
an error then. The last problem with a broker is kept as a cause, to be added to errors such as
librdkafka's `Timed out`, which do not contain one.
"""

from __future__ import annotations

import logging
import re
import threading

from confluent_kafka import KafkaError

from strandline.changelog.clock import Clock
from strandline.changelog.kafka.callbacks import in_callback
from strandline.changelog.rate_limited_log import RateLimitedLog

EVERY_SECONDS = 30.0
"""Minimum seconds between two log messages of one kind."""
QUIET_SECONDS = 3.0
"""Seconds after an answer in which `no broker answers` is ignored as outdated, because an idle
client delivers it late."""
CAUSE_SECONDS = 40.0
"""Seconds for which a problem counts as the cause of errors. librdkafka repeats a lasting problem
every 30 s."""

_ITS_OWN = frozenset(
    (
        # Connections, and requests that are sent again:
        *("FAIL", "ERROR", "REQTMOUT", "APIVERSION", "METADATA", "GETPID"),
        # Transactions and groups; the affected call raises, or the member is removed:
        *("TXNERR", "ADDPARTS", "ADDOFFSETS", "COMMITFAIL", "HEARTBEAT", "SESSTMOUT", "MAXPOLL"),
        # Fetching, termination, changed metadata:
        *("FETCH", "OFFSET", "TERMINATE", "PARTCNT"),
    )
)
"""Kinds of lines that are not logged as warnings, whatever librdkafka's level for them."""
_WARNINGS = {
    KafkaError._ALL_BROKERS_DOWN: "no broker answers; the client goes on trying",
    KafkaError._AUTHENTICATION: "not let in",
    KafkaError._SSL: "no encrypted connection",
}
_FATAL = "a client can do nothing more"
_FENCED = "fenced by a newer instance"
"""Part of the text for a producer that another one has replaced, which its next call raises."""
_THREAD = re.compile(r"^\[thrd:[^\]]*\]: ")
_BROKER = re.compile(r"^((?:\w+://)?[^\s/]+:\d+)/\w+: ")
_STATE = re.compile(r" \(after \d+ms in state [^)]*\)$")
_OLD = re.compile(r"(?:: probably due to|,? or) broker version (?:is )?< 0\.10(?: \(see [^)]*\))?")
"""librdkafka's wrong guess that a slow broker is of a version before 0.10."""


class ClientLogs:
    """The log lines and events of one connection. Thread-safe, because clients have own threads."""

    def __init__(self, name: str, log: logging.Logger, clock: Clock) -> None:
        self.met = False
        """True once the cluster has answered for the first time."""
        self._name = name
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._by_kind: dict[object, RateLimitedLog] = {}
        self._cause = ""
        self._cause_at = 0.0
        self._answered_at = -QUIET_SECONDS

    @in_callback
    def log(self, level: int, _form: str, kind: str, client: str, text: str) -> None:
        """Handle a log line; the method `log` of a confluent-kafka client's `logger`."""
        if kind == "FAIL":
            self._set_cause(text)
        is_own = kind in _ITS_OWN and level < logging.CRITICAL
        if is_own or _FENCED in text or not self.met:
            level = min(level, logging.INFO)
        line = f"{self._name}: librdkafka: {kind}: {plain(text)}"
        self._log_limited(kind, line, level, client=client)

    def event(self, error: KafkaError) -> None:
        """Handle an event from the `error_cb` of a client."""
        code = error.code()
        if code != KafkaError._ALL_BROKERS_DOWN:
            self._set_cause(error.str())
        elif self._clock.monotonic() - self._answered_at < QUIET_SECONDS:
            return
        what = _FATAL if error.fatal() else _WARNINGS.get(code, "")
        if what and self.met and _FENCED not in error.str():
            cause = self.cause
            line = f"{self._name}: {what}{f': {cause}' if cause else ''}"
            self._log_limited(code, line, logging.WARNING, error=error.name())

    def answered(self) -> None:
        """Record that a broker has just answered."""
        self._answered_at = self._clock.monotonic()

    @property
    def cause(self) -> str:
        """Latest problem with a broker; empty if there was none recently."""
        is_fresh = self._clock.monotonic() - self._cause_at <= CAUSE_SECONDS
        return self._cause if is_fresh else ""

    def _set_cause(self, text: str) -> None:
        self._cause, self._cause_at = plain(text), self._clock.monotonic()

    def _log_limited(self, kind: object, text: str, level: int, **fields: object) -> None:
        with self._lock:
            if kind not in self._by_kind:
                self._by_kind[kind] = RateLimitedLog(self._log, self._clock, EVERY_SECONDS)
        self._by_kind[kind].note(text, level=level, **fields)


def plain(text: str) -> str:
    """Return a line of librdkafka without internal details.

    >>> plain("[thrd:db:9092/1]: db:9092/1: Connect to ipv4#10.0.0.7:9092 failed: Connection "
    ...       "refused (after 0ms in state CONNECT)")
    'db:9092: Connect to 10.0.0.7:9092 failed: Connection refused'
    >>> plain("db:9092/bootstrap: ApiVersionRequest failed: Local: Timed out: probably due to "
    ...       "broker version < 0.10 (see api.version.request configuration) (after 10007ms in "
    ...       "state APIVERSION_QUERY)")
    'db:9092: ApiVersionRequest failed: Local: Timed out'
    """
    text = _STATE.sub("", _THREAD.sub("", text))
    return _OLD.sub("", _BROKER.sub(r"\1: ", text)).replace("ipv4#", "").replace("ipv6#", "")
