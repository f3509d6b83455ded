"""One connection to the owner of a log: its session stream, its calls and their deadlines.

The connection begins and ends with its session stream. A call that is not answered in time raises
OwnerUnavailable, which names the owner. The connection stays open after that, unless the call is
blocked in a write. Only this module translates Flight's errors.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import flight

from strandline.changelog.errors import OwnerUnavailable, RecordTooLarge, StrandlineError
from strandline.changelog.flight.batches import (
    ROW_SCHEMA,
    append_rows,
    read_fetched,
    rows_of,
    small_append,
)
from strandline.changelog.flight.endpoint import OwnerEndpoint
from strandline.changelog.flight.fork import ForkGuard
from strandline.changelog.flight.grants import (
    GRANTS_HEADER,
    Grants,
    Subject,
    opened_by,
    producers_of,
    subjects_of,
)
from strandline.changelog.flight.limits import LARGE_APPEND_BYTES, MAX_REMOTE_APPEND_BYTES
from strandline.changelog.flight.messages import (
    APPEND,
    GOODBYE,
    HELLO,
    LOCATE,
    MAX_SMALL_APPEND_BYTES,
    REMOTE_APPEND,
    SESSION,
    SESSION_HEADER,
    SMALL_APPEND,
    WIRE_VERSION,
    AppendAnswer,
    FetchRequest,
    FlightMessage,
    Located,
    RemoteFailure,
    SessionEnded,
    SessionHello,
    SessionWelcome,
    decode,
    decode_answer,
    encode,
    error_of,
)
from strandline.changelog.flight.relay import Relay, TlsClient
from strandline.changelog.flight.requests import Request
from strandline.changelog.records import Append, Appended, Fetched, TopicPartition

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConnectionTarget:
    """Address and credentials of a log."""

    location: str
    token: str = field(repr=False)
    name: str
    """Name of the log in errors: its folder or URL."""
    endpoint: OwnerEndpoint | None = field(default=None, repr=False)
    """Content of the folder's endpoint file; None for a remote log."""
    folder: Path | None = None
    """Folder of the log; None if this process cannot read it."""
    ca: bytes | None = None
    """Trusted certificates for TLS (PEM); None for those of the system."""
    certificate: str | None = None
    """Path of the client's own TLS certificate (PEM)."""
    key: str | None = None
    """Path of the private key of `certificate` (PEM)."""


class FlightConnection:
    """Calls to the owner at `target`.

    Args:
        target: The log.
        deadline: Seconds that a call may take before it raises OwnerUnavailable.
        connect_within: Seconds that connecting may take.
        grants: Grants that earlier connections to the same log have received.

    Raises:
        OwnerUnavailable: The owner is gone or does not answer in time.
        Unauthenticated: The token is missing or wrong.
        InvalidRequest: The owner speaks another version of the protocol.
        Fenced: This process is a forked child.
    """

    def __init__(
        self,
        target: ConnectionTarget,
        *,
        deadline: float,
        connect_within: float,
        grants: Grants | None = None,
    ) -> None:
        self._grants = grants or Grants()
        self._fork = ForkGuard()
        self._target = target
        self._deadline = deadline
        self.session = SessionStream(target, connect_within)
        self._client = self.session.client
        self._large_appends = threading.Lock()
        self._headers = _headers(self.session.credential, self.session.welcome.session)

    def close(self) -> None:
        """End the session. Idempotent; does nothing in a forked child."""
        if not self._fork.foreign:
            self.session.close()

    def ask(self, request: Request, extra_s: float = 0.0) -> Any:
        """Return the answer to a request; `extra_s` seconds are added to its deadline."""
        kind = type(request)
        subjects = subjects_of(request) if self.session.relayed else ()
        if kind.paged:
            results = self._results(kind.__name__, request, extra_s, subjects)
            return [item for page in results for item in decode_answer(page, kind.answer)]
        answer, granted = self._act(kind.__name__, request, kind.answer, extra_s, subjects)
        opened = opened_by(request, answer) if granted else None
        if opened is not None:
            self._grants.keep(opened, granted[0])
        return answer

    def locate(self, request: FetchRequest) -> Located:
        """Return where a fetch finds its records; the fetch's timeout is added to the deadline."""
        located: Located = self._act(LOCATE, request, Located, request.timeout)[0]
        return located

    def _act(
        self,
        kind: str,
        body: FlightMessage,
        answer: Any,
        extra_s: float = 0.0,
        subjects: Collection[Subject] = (),
    ) -> tuple[Any, list[bytes]]:
        """Return the answer to an action, and the grants that came with it."""
        result, *granted = self._results(kind, body, extra_s, subjects)
        return decode_answer(result, answer), [bytes(one) for one in granted]

    def _results(
        self, kind: str, body: FlightMessage, extra_s: float, subjects: Collection[Subject]
    ) -> list[Any]:
        """Return the bodies of all results of an action."""
        with self._errors_translated(kind):
            action = flight.Action(kind, encode(body))
            options = self._options(extra_s, subjects)
            return [result.body for result in self._client.do_action(action, options)]

    def fetch(self, request: FetchRequest) -> dict[TopicPartition, Fetched]:
        """Return the answer to a fetch; the fetch's timeout is added to the deadline."""
        with self._errors_translated("fetch"):
            ticket = flight.Ticket(encode(request))
            reader = self._client.do_get(ticket, self._options(request.timeout))
            try:
                return read_fetched(rows_of(reader))
            except BaseException:
                reader.cancel()
                raise

    def append(self, appends: Sequence[Append]) -> list[Appended]:
        """Send batches and return once all of them are acknowledged."""
        size = sum(append.columns.nbytes for append in appends)
        with self._errors_translated("append"):
            if self.session.relayed and size > MAX_SMALL_APPEND_BYTES:
                answer = self._append_over_tcp(appends, size)
            elif size <= MAX_SMALL_APPEND_BYTES:
                action = flight.Action(SMALL_APPEND, encode(small_append(appends)))
                producers = producers_of(appends) if self.session.relayed else ()
                (result,) = self._client.do_action(action, self._options(subjects=producers))
                answer = result.body
            else:
                answer = _call_within(lambda: self._send(appends), self._deadline)
        acknowledged: AppendAnswer = decode(answer, AppendAnswer)
        return acknowledged.appended

    def _append_over_tcp(self, appends: Sequence[Append], size: int) -> bytes:
        """Send batches over TCP in one message, because the server reads no streams of clients."""
        if size > MAX_REMOTE_APPEND_BYTES:
            raise RecordTooLarge(
                f"an append call over TCP has {size:,} bytes, the limit is {MAX_REMOTE_APPEND_BYTES:,}; send "
                "its batches in several calls"
            )

        def send() -> bytes:
            action = flight.Action(REMOTE_APPEND, encode(small_append(appends)))
            options = self._options(subjects=producers_of(appends))
            (result,) = self._client.do_action(action, options)
            return bytes(result.body)

        # One at a time: together they could exceed the bytes that a client may have in flight.
        with self._large_appends if size > LARGE_APPEND_BYTES else contextlib.nullcontext():
            return _call_within(send, self._deadline)

    def _send(self, appends: Sequence[Append]) -> bytes:
        descriptor = flight.FlightDescriptor.for_command(APPEND)
        writer, answers = self._client.do_put(descriptor, ROW_SCHEMA, self._options())
        try:
            for row in append_rows(appends):
                writer.write_with_metadata(row.data, row.header)
            writer.done_writing()
            return bytes(memoryview(answers.read()))
        finally:
            # Closing raises the error because of which the owner stopped reading. A failed write
            # does not have it.
            writer.close()

    def _options(
        self, extra_s: float = 0.0, subjects: Collection[Subject] = ()
    ) -> flight.FlightCallOptions:
        headers = self._headers
        if subjects and (presented := self._grants.presented(subjects)):
            headers = [*headers, (GRANTS_HEADER.encode(), presented)]
        return flight.FlightCallOptions(timeout=self._deadline + extra_s, headers=headers)

    @contextlib.contextmanager
    def _errors_translated(self, call: str) -> Iterator[None]:
        self._fork.check()
        if self.session.lost:
            raise OwnerUnavailable(self.session.reason)
        try:
            yield
        except _Stuck:
            late = _no_answer(self._target, self._deadline)
            self.session.mark_lost(str(late))
            raise late from None
        except _FOREIGN as error:
            _raise_translated(error, self._target, call, self._deadline, self.session)


def relay_to(target: ConnectionTarget, deadline: float) -> Relay | None:
    """Return an authenticated relay to a log served over TCP; None for a Unix socket."""
    parts = urlsplit(target.location)
    if parts.scheme not in ("grpc+tcp", "grpc+tls"):
        return None
    tls = TlsClient(target.ca, target.certificate, target.key)
    return Relay(
        parts.hostname or "",
        parts.port or 0,
        token=target.token,
        tls=tls if parts.scheme == "grpc+tls" else None,
        name=target.name,
        deadline_s=deadline,
    )


class SessionStream:
    """Stream that stays open as long as both client and owner live.

    A thread reads it, so each side notices at once when the other ends.
    """

    def __init__(self, target: ConnectionTarget, deadline: float) -> None:
        self._target = target
        self._lost = threading.Event()
        self._closing = threading.Lock()
        self.reason = f"the log {target.name} was closed by this process"
        self._relay = relay_to(target, deadline)
        location = target.location if self._relay is None else self._relay.location
        self.credential = target.token if self._relay is None else self._relay.credential
        """Sent with each call."""
        self.client = flight.connect(location, generic_options=_CHANNEL_OPTIONS)
        try:
            self.welcome = self._begin(deadline)
        except BaseException:
            self._disconnect(self.client)
            raise
        self._watcher = threading.Thread(target=self._watch, name="strandline-session", daemon=True)
        self._watcher.start()

    @property
    def lost(self) -> bool:
        return self._lost.is_set()

    @property
    def relayed(self) -> bool:
        """True if the log is served over TCP."""
        return self._relay is not None

    def close(self) -> None:
        with self._closing:
            if self.client is None:
                return
            client, self.client = self.client, None
        # Set before the stream is cancelled, because the first reason stays: the watcher would
        # otherwise report that the owner is gone.
        self._lost.set()
        _cancel(self._reader)
        if threading.current_thread() is not self._watcher:
            self._watcher.join(_HANG_UP_S)
        self._disconnect(client)

    def _disconnect(self, client: Any) -> None:
        if self._relay is not None:
            self._relay.close()
        client.close()

    def mark_lost(self, reason: str) -> None:
        """Mark the connection as lost, with the reason for errors; the first reason stays."""
        if not self._lost.is_set():
            self.reason = reason
            self._lost.set()

    def _begin(self, deadline: float) -> SessionWelcome:
        hello = SessionHello(WIRE_VERSION, os.getpid(), os.path.basename(sys.argv[0] or "python"))
        options = flight.FlightCallOptions(headers=_headers(self.credential))
        # The stream has no deadline since it stays open, and opening it would wait for the
        # connection without limit. So a call with a deadline goes first, and a timer cancels the
        # stream if the owner's answer is late.
        late = threading.Event()
        try:
            hello_options = flight.FlightCallOptions(
                timeout=deadline, headers=_headers(self.credential)
            )
            list(self.client.do_action(flight.Action(HELLO, encode(hello)), hello_options))
            if self._relay is None:
                answer = self._exchange(hello, options, deadline, late)
            else:
                answer = self._get(self._relay, hello, options, deadline, late)
        except (*_FOREIGN, StopIteration) as error:
            if late.is_set():
                raise _no_answer(self._target, deadline) from error
            raised = _translated(error, self._target, "open", deadline)
            gone = isinstance(raised, SessionEnded)
            raise (OwnerUnavailable(str(raised)) if gone else raised) from error
        welcome: SessionWelcome = decode(answer, SessionWelcome)
        return welcome

    def _exchange(
        self, hello: SessionHello, options: Any, deadline: float, late: threading.Event
    ) -> Any:
        """Open the stream over the Unix socket; return the owner's answer."""
        descriptor = flight.FlightDescriptor.for_command(SESSION)
        self._writer, self._reader = self.client.do_exchange(descriptor, options)
        with _alarm(deadline, late, lambda: _cancel(self._reader)):
            self._writer.write_metadata(encode(hello))
            return self._reader.read_chunk().app_metadata

    def _get(
        self,
        relay: Relay,
        hello: SessionHello,
        options: Any,
        deadline: float,
        late: threading.Event,
    ) -> Any:
        """Open the stream over TCP; return the owner's answer.

        The hello is in the ticket, because the owner reads no streams of clients over TCP.
        """
        # Opening the stream waits for its schema, so a late answer ends the whole connection.
        with _alarm(deadline, late, relay.close):
            self._reader = self.client.do_get(flight.Ticket(SESSION + encode(hello)), options)
            return self._reader.read_chunk().app_metadata

    def _watch(self) -> None:
        reason = f"the owner of {self._target.name} (pid {self.welcome.pid}) is gone"
        try:
            while self._reader.read_chunk().app_metadata != GOODBYE:
                pass
            reason = f"the owner of {self._target.name} (pid {self.welcome.pid}) has closed the log"
        except (StopIteration, *_FOREIGN):
            pass
        self.mark_lost(reason)
        with contextlib.suppress(*_FOREIGN):
            if self._relay is None:
                self._writer.close()


_HANG_UP_S = 2.0
_MARGIN_S = 0.1
"""Seconds to wait beyond gRPC's own deadline, whose error is more precise."""
_FOREIGN = (flight.FlightError, pa.ArrowException, OSError)


# Without this option, a new connection would share the socket of an old one that is blocked.
_CHANNEL_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


class _Stuck(Exception):
    """A write did not return in time."""


def _call_within(call: Callable[[], T], seconds: float) -> T:
    """Return the result of `call`; raise _Stuck if it takes longer than `seconds`.

    A gRPC write into a full socket ignores both the call's deadline and cancellation. So it runs in
    a thread that can be abandoned, and that ends when the owner reads again or dies.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, name="strandline-append", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread can be started while the interpreter exits
        return call()
    try:
        return done.result(seconds + _MARGIN_S)
    except FutureTimeout:
        raise _Stuck from None


@contextlib.contextmanager
def _alarm(seconds: float, late: threading.Event, cancel: Callable[[], None]) -> Iterator[None]:
    """Set `late` and call `cancel` if the block takes longer than `seconds`."""

    def ring() -> None:
        late.set()
        cancel()

    alarm = threading.Timer(seconds, ring)
    alarm.daemon = True
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


def _cancel(reader: Any) -> None:
    with contextlib.suppress(*_FOREIGN):
        reader.cancel()


def _headers(credential: str, session: str = "") -> list[tuple[bytes, bytes]]:
    headers = []
    if credential:
        headers.append((b"authorization", f"Bearer {credential}".encode()))
    if session:
        headers.append((SESSION_HEADER.encode(), session.encode()))
    return headers


def _raise_translated(
    error: Exception,
    target: ConnectionTarget,
    call: str,
    deadline: float,
    session: SessionStream,
) -> NoReturn:
    """Raise the owner's error, or OwnerUnavailable if the owner is gone."""
    raised = _translated(error, target, call, deadline)
    if isinstance(error, flight.FlightUnauthenticatedError):  # the session began with this token
        raised = SessionEnded(f"another process owns {target.name} now")
    if session.lost and not getattr(error, "extra_info", None):
        # Another thread has noticed the owner's end and closed the connection during this call.
        raise OwnerUnavailable(session.reason) from error
    if isinstance(raised, SessionEnded):
        session.mark_lost(str(raised))
        raise OwnerUnavailable(session.reason) from error
    raise raised from error


def _translated(
    error: Exception, target: ConnectionTarget, call: str, deadline: float
) -> StrandlineError:
    sent = getattr(error, "extra_info", None)
    if sent:
        failure: RemoteFailure = decode(sent, RemoteFailure)
        return error_of(failure)
    if isinstance(error, flight.FlightTimedOutError):
        return _no_answer(target, deadline)
    # The rest of gRPC's message repeats its beginning several times.
    said = str(error).partition(" gRPC client debug context")[0]
    if isinstance(error, flight.FlightUnavailableError | flight.FlightCancelledError):
        return SessionEnded(f"the owner of {target.name} is gone ({call}: {said})")
    return StrandlineError(f"{call} on {target.name} failed: {said}")


def _no_answer(target: ConnectionTarget, deadline: float) -> OwnerUnavailable:
    late = OwnerUnavailable(_no_answer_text(target))
    late.waited = deadline
    return late


def _no_answer_text(target: ConnectionTarget) -> str:
    endpoint = target.endpoint
    if endpoint is None:
        return f"{target.name} did not answer"
    state = "is stopped" if endpoint.life() == "stopped" else "did not answer"
    return (
        f"the owner of {target.name}, process {endpoint.pid}, {state}; "
        f"resume it (kill -CONT {endpoint.pid}), or end it (kill -9 {endpoint.pid}) so that another "
        "process takes over"
    )
