"""What librdkafka says of itself, in log lines and events: what becomes of it.

It repeats itself by the hundred, in every client of a connection. So each kind is said at once, and
then at most once in EVERY_SECONDS, with how many there were.

    warnings   what somebody has to see to, and what nobody but librdkafka says: no broker answers,
               who is not let in, TLS, a client that has come to its end
    INFO       what it mends by itself, or what the call ends with that it concerns (`_ITS_OWN`)

Before the first answer of a cluster there are no warnings at all: the error that opening the log ends
with says it. What a broker was last in trouble with is kept, since librdkafka's `Timed out` does not tell.
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
QUIET_SECONDS = 3.0
"""So soon after an answer `no broker answers` is old: a client that was not in use hands it out late."""
CAUSE_SECONDS = 40.0
"""So long a trouble counts as the cause of what fails: librdkafka repeats one that lasts every 30 s."""

_ITS_OWN = frozenset(
    (
        # Connections, and requests that are sent again:
        *("FAIL", "ERROR", "REQTMOUT", "APIVERSION", "METADATA", "GETPID"),
        # Transactions and groups; the calls in question raise, or the member is put out:
        *("TXNERR", "ADDPARTS", "ADDOFFSETS", "COMMITFAIL", "HEARTBEAT", "SESSTMOUT", "MAXPOLL"),
        # What is read, what is given up, and what has changed:
        *("FETCH", "OFFSET", "TERMINATE", "PARTCNT"),
    )
)
"""Kinds of lines that are no warnings here, whatever librdkafka thinks of them."""
_FOR_SOMEBODY = {
    KafkaError._ALL_BROKERS_DOWN: "no broker answers; the client goes on trying",
    KafkaError._AUTHENTICATION: "not let in",
    KafkaError._SSL: "no encrypted connection",
}
_FATAL = "a client can do nothing more"
_THREAD = re.compile(r"^\[thrd:[^\]]*\]: ")
_BROKER = re.compile(r"^((?:\w+://)?[^\s/]+:\d+)/\w+: ")
_STATE = re.compile(r" \(after \d+ms in state [^)]*\)$")
_OLD = re.compile(r"(?:: probably due to|,? or) broker version (?:is )?< 0\.10(?: \(see [^)]*\))?")
"""The age of a broker that is only slow: librdkafka guesses, and there are none so old."""


class ClientLogs:
    """Of one connection. Thread-safe: its clients call from threads of their own."""

    def __init__(self, name: str, log: logging.Logger, clock: Clock) -> None:
        self.met = False
        """Whether the cluster has ever answered."""
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
        """Take a line, as the `logger` of a client of confluent-kafka's."""
        if kind == "FAIL":
            self._is_cause(text)
        is_own = kind in _ITS_OWN and level < logging.CRITICAL
        if is_own or not self.met:
            level = min(level, logging.INFO)
        said = f"{self._name}: librdkafka: {kind}: {plain(text)}"
        self._note(kind, said, level, client=client)

    def event(self, error: KafkaError) -> None:
        """Take an event, from the `error_cb` of a client."""
        code = error.code()
        if code != KafkaError._ALL_BROKERS_DOWN:
            self._is_cause(error.str())
        elif self._clock.monotonic() - self._answered_at < QUIET_SECONDS:
            return
        what = _FATAL if error.fatal() else _FOR_SOMEBODY.get(code, "")
        if what and self.met:
            cause = self.cause
            said = f"{self._name}: {what}{f': {cause}' if cause else ''}"
            self._note(code, said, logging.WARNING, error=error.name())

    def answered(self) -> None:
        """Note that a broker has."""
        self._answered_at = self._clock.monotonic()

    @property
    def cause(self) -> str:
        """What a broker was in trouble with just now; empty if none was."""
        is_fresh = self._clock.monotonic() - self._cause_at <= CAUSE_SECONDS
        return self._cause if is_fresh else ""

    def _is_cause(self, text: str) -> None:
        self._cause, self._cause_at = plain(text), self._clock.monotonic()

    def _note(self, kind: object, text: str, level: int, **fields: object) -> None:
        with self._lock:
            if kind not in self._by_kind:
                self._by_kind[kind] = RateLimitedLog(self._log, self._clock, EVERY_SECONDS)
        self._by_kind[kind].note(text, level=level, **fields)


def plain(text: str) -> str:
    """A line of librdkafka's without what only its developers understand.

    >>> plain("[thrd:db:9092/1]: db:9092/1: Connect to ipv4#10.0.0.7:9092 failed: Connection refused "
    ...       "(after 0ms in state CONNECT)")
    'db:9092: Connect to 10.0.0.7:9092 failed: Connection refused'
    >>> plain("db:9092/bootstrap: ApiVersionRequest failed: Local: Timed out: probably due to broker "
    ...       "version < 0.10 (see api.version.request configuration) (after 10007ms in state APIVERSION_QUERY)")
    'db:9092: ApiVersionRequest failed: Local: Timed out'
    """
    text = _STATE.sub("", _THREAD.sub("", text))
    return _OLD.sub("", _BROKER.sub(r"\1: ", text)).replace("ipv4#", "").replace("ipv6#", "")
