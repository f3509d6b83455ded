"""FlightEndpoint: serves a Broker to other processes over Arrow Flight.

    DoExchange "session"   open as long as the client lives; its end shows that the client is gone
    DoPut      "append"    a stream of batches, appended and acknowledged together
    DoGet                  the ticket is a FetchRequest; waits in the server if nothing is new;
                           the session of a client over TCP, whose ticket has its hello
    DoAction               every other call, named by its request type, and small appends;
                           LOCATE waits like DoGet

Clients over TCP call DoGet and DoAction only. Arrow reads the first message of the other two before
any code of this module runs: the schema in it, and the batches after it, decompressed.

Every call carries a token, which is checked first. Every call except Hello and the session stream
also carries a session id. Messages from clients are limited in size and decoded into known types
only, and their batches are validated value by value.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from pyarrow import flight

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.embedded.view import RecordView
from strandline.changelog.errors import InvalidRequest, StrandlineError, Unauthenticated
from strandline.changelog.flight.answers import Answer
from strandline.changelog.flight.authorization import Permit
from strandline.changelog.flight.batches import (
    EMPTY_ROW,
    StreamMessage,
    claimed_by,
    fetched_rows,
    read_appends,
    read_small_append,
    rows_of,
    stream_of,
)
from strandline.changelog.flight.budgets import Budgets
from strandline.changelog.flight.caller import GATE, Caller, CallGate
from strandline.changelog.flight.clients import Client, Clients
from strandline.changelog.flight.counted_answers import CountedAnswers
from strandline.changelog.flight.fork import forbid_in_children
from strandline.changelog.flight.goodbyes import Goodbyes, RemoteGoodbye, StreamGoodbye
from strandline.changelog.flight.grants import Granting, presented_in
from strandline.changelog.flight.held import HeldObjects
from strandline.changelog.flight.limits import MAX_CALL_BYTES
from strandline.changelog.flight.locating import Locate
from strandline.changelog.flight.messages import (
    APPEND,
    GOODBYE,
    HELLO,
    LOCATE,
    MAX_FETCH_BYTES,
    MAX_MESSAGE_BYTES,
    REMOTE_APPEND,
    SESSION,
    SMALL_APPEND,
    WIRE_VERSION,
    AppendAnswer,
    FetchRequest,
    SessionEnded,
    SessionWelcome,
    SmallAppend,
    check_version,
    decode_request,
    encode,
    encode_pages,
    failure_of,
)
from strandline.changelog.flight.requests import (
    REQUESTS,
    AddOffsets,
    EndTransaction,
    InitProducer,
    JoinGroup,
    LeaveGroup,
    Request,
)
from strandline.changelog.flight.sessions import ClientSession, Sessions
from strandline.changelog.flight.sink_rights import StagingTargets
from strandline.changelog.forks import keep_in_child, leave_alone
from strandline.changelog.groups import GroupMember
from strandline.changelog.pins import PinName, there
from strandline.changelog.records import Append, Fetched, TopicPartition

_log = logging.getLogger(__name__)

T = TypeVar("T")

RUNNING_S = 30.0
"""Maximum seconds that closing waits for calls whose Python code runs."""
POLL_SLICE_S = 0.2
"""Seconds after which a waiting fetch checks if its client is still connected."""


@dataclass(frozen=True)
class RemoteClients:
    """Clients that come through a TCP front."""

    clients: Clients
    """Registry of their authenticated connections."""
    budgets: Budgets
    """Limits on the calls and bytes that they have in flight."""
    answers: CountedAnswers
    """Answers to all calls but fetches."""
    granting: Granting
    """Issues and checks their grants."""
    locate: Locate
    """Waits for records without reading them, before bytes are reserved for them."""


class FlightEndpoint:
    """Server that offers `broker` at `location`, a Unix socket ("grpc+unix:///…").

    It runs from construction until `close`, in its own threads.

    Args:
        broker: The log.
        location: Flight location of the socket, which only this user can access.
        token: Token of processes of this user; "" if only `remote` clients may call.
        clock: Measures waiting times.
        remote: Clients that come through a TCP front; None if there is no front.
        locate: Returns where records are, for clients that can read the log's files; without it
            every fetch is answered with records.
    """

    def __init__(
        self,
        broker: Broker,
        location: str,
        *,
        token: str,
        clock: Clock | None = None,
        remote: RemoteClients | None = None,
        locate: Locate | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self.sessions = Sessions(broker, self._clock)
        self._service = _Service(
            location=location,
            middleware={GATE: CallGate(token, Clients() if remote is None else remote.clients)},
        )
        self._service.bind(broker, self.sessions, self._clock, locate, remote)
        self._closing = threading.Lock()
        self._closed = False
        forbid_in_children()
        keep_in_child(self, self._service)
        # Flight's shutdown waits for every client, and a stopped client must not block `close`.
        # Its thread starts now, because no thread can be started while the interpreter exits.
        self._end = threading.Event()
        self._shutdown = threading.Thread(
            target=_shut_down_after,
            args=(self._end, self._service),
            name="strandline-endpoint-close",
            daemon=True,
        )
        self._shutdown.start()

    def say_goodbye(self) -> None:
        """Refuse new calls and ask all clients to close their sessions."""
        self._service.goodbyes.say_to_all(self._clock)

    def close(self, grace: float = 3.0) -> None:
        """Refuse new calls and wait up to `grace` seconds for the calls in progress.

        It waits longer for calls that run Python code, because an interpreter that ends meanwhile
        aborts the process. They depend on no client.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._service.goodbyes.say_to_all(self._clock)
        self._end.set()
        self._shutdown.join(grace)
        if self._shutdown.is_alive() and self._service.running.wait(RUNNING_S):
            self._shutdown.join(grace)
        if self._shutdown.is_alive():
            _log.warning("closed the endpoint while some clients still had calls under way")
            # The destructor would wait like the shutdown does, so the server is never destroyed.
            leave_alone(self._service)


class _RunningCalls:
    """Calls whose Python code runs, and that wait for no client. Each enters and exits it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    def __enter__(self) -> None:
        with self._changed:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until there is none; return False if some are left after `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._count, seconds)


def _shut_down_after(end: threading.Event, service: _Service) -> None:
    end.wait()
    service.shutdown()


class _Service(flight.FlightServerBase):  # type: ignore[misc]
    """Flight server; each `do_…` method runs in a thread of gRPC's pool."""

    def bind(
        self,
        broker: Broker,
        sessions: Sessions,
        clock: Clock,
        locate: Locate | None,
        remote: RemoteClients | None,
    ) -> None:
        self._broker = broker
        self._locate = locate
        self._remote = remote
        self._sessions = sessions
        self._clock = clock
        self.goodbyes = Goodbyes()
        self.running = _RunningCalls()
        self._held = HeldObjects(broker, clock)
        self._targets = StagingTargets(broker)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with _failures_sent():
            if descriptor.command != SESSION:
                raise InvalidRequest(f"unknown stream {descriptor.command[:40]!r}")
            check_version(reader.read_chunk().app_metadata)
            session = self._sessions.start()
            goodbye = StreamGoodbye(writer)
            try:
                writer.write_metadata(encode(self._welcome(session)))
                self.goodbyes.register(session.id, goodbye)
                _wait_until_closed(reader)
            finally:
                goodbye.forget()
                self._end(session)

    def _remote_session(self, client: Client) -> Iterator[StreamMessage]:
        """Yield the messages of the session of a client over TCP, until its connection ends."""
        session = self._sessions.start()
        goodbye = RemoteGoodbye(client)
        try:
            yield StreamMessage(EMPTY_ROW, encode(self._welcome(session)))
            self.goodbyes.register(session.id, goodbye)
            if goodbye.is_asked():
                yield StreamMessage(EMPTY_ROW, GOODBYE)
                goodbye.sent.set()
                client.ended.wait()
        finally:
            goodbye.sent.set()
            self._end(session)

    def _welcome(self, session: ClientSession) -> SessionWelcome:
        return SessionWelcome(WIRE_VERSION, os.getpid(), session.id, self._locate is not None)

    def _end(self, session: ClientSession) -> None:
        self.goodbyes.forget(session.id)
        with self.running:
            self._sessions.end(session)

    def do_action(self, context: Any, action: Any) -> Iterable[bytes]:
        with _failures_sent(), self.running:
            caller = _caller(context)
            if action.type == HELLO:
                check_version(action.body)
                return []
            session = self._session(caller)
            if action.type in (SMALL_APPEND, REMOTE_APPEND):
                return [encode(self._append_from(caller, session, action))]
            if action.type == LOCATE and self._locate is not None:
                wanted: FetchRequest = decode_request(action.body, FetchRequest)
                return [encode(self._poll(context, wanted, self._locate, _has_pieces))]
            kind = REQUESTS.get(action.type)
            if kind is None:
                raise InvalidRequest(f"the log's owner has no call named {action.type!r}")
            request: Request[Any] = decode_request(action.body, kind)
            permit = self._permit(caller)
            if permit is None:
                return _encoded(request, self._run(session, request))
            permit.check(request)
            own = permit.own(request)
            with self._held.counted(permit.holder.token_id, own) as note:
                answer = self._run(session, own)
                note(answer)
            visible, grants = permit.visible(request, answer), permit.grants(request, answer)
            assert caller.client is not None, "only clients over TCP have a permit"
            answers = self._remote_clients().answers
            return answers.of(caller.client, lambda: _encoded(request, visible), grants)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with _failures_sent():
            session = self._session(_caller(context))
            if descriptor.command != APPEND:
                raise InvalidRequest(f"unknown stream {descriptor.command!r}")
            _answer(writer, self._append(session, read_appends(rows_of(reader))))

    def do_get(self, context: Any, ticket: Any) -> Any:
        with _failures_sent():
            caller = _caller(context)
            if caller.client is not None and ticket.ticket.startswith(SESSION):
                check_version(ticket.ticket.removeprefix(SESSION))
                if not caller.client.begin_session():
                    raise InvalidRequest("this connection has a session already")
                return stream_of(_with_failures_sent(self._remote_session(caller.client)))
            self._session(caller)
            request: FetchRequest = decode_request(ticket.ticket, FetchRequest)
            permit = self._permit(caller)
            if permit is not None and caller.client is not None:
                permit.check(request)
                answer = self._fetch_stream(context, caller.client, permit.own(request))
                return stream_of(_with_failures_sent(answer))
            if request.pin is not None:
                fetched = self._pinned(request, request.pin)
            else:
                fetched = self._poll(context, request, self._broker.fetch, _has_new_records)
            return stream_of(_with_failures_sent(fetched_rows(fetched)))

    def _pinned(self, request: FetchRequest, pin: PinName) -> dict[TopicPartition, Fetched]:
        max_bytes, fetch = min(request.max_bytes, MAX_FETCH_BYTES), there(self._broker.pins).fetch
        return {
            tp: fetch(pin, tp, offset, max_bytes=max_bytes)
            for tp, offset in request.positions.items()
        }

    def _permit(self, caller: Caller) -> Permit | None:
        """Return the rights that limit this call; None for a process of the same user."""
        if caller.client is None:
            return None
        granting = self._remote_clients().granting
        holder, presented = caller.client.caller.holder, presented_in(caller.grants)
        return Permit.of(holder, granting, presented, self._targets)

    def _remote_clients(self) -> RemoteClients:
        if self._remote is None:
            raise InvalidRequest("this endpoint serves no clients over TCP")
        return self._remote

    def _session(self, caller: Caller) -> ClientSession:
        if self.goodbyes.all_said:
            raise SessionEnded("the log's owner is closing")
        return self._sessions.find(caller.session)

    def _run(self, session: ClientSession, request: Request[Any]) -> Any:
        if isinstance(request, InitProducer):
            with session.changing():
                identity = request.run(self._broker)
            session.closed(identity)
            return identity
        if isinstance(request, AddOffsets | EndTransaction):
            with session.changing(request.producer):
                answer = request.run(self._broker)
            if isinstance(request, EndTransaction):
                session.closed(request.producer)
            return answer
        if isinstance(request, JoinGroup):
            with session.changing():
                member: GroupMember = request.run(self._broker)
                if request.subscription.instance is None:
                    session.joined(member)
            return member
        if isinstance(request, LeaveGroup):
            session.left(request.members)
        return request.run(self._broker)

    def _fetch_stream(
        self, context: Any, client: Client, request: FetchRequest
    ) -> Iterator[StreamMessage]:
        """Yield the answer to a fetch over TCP; its bytes count as in flight until it is sent."""
        remote = self._remote_clients()
        answer = Answer(self._broker, remote.locate, remote.budgets.answers, client)
        try:
            if request.pin is not None:
                rows = fetched_rows(answer.pinned(request, request.pin))
            else:
                rows = fetched_rows(self._poll(context, request, answer.fetch, _has_new_records))
            # No variable refers to the records, so they are gone before `finally`.
            yield from rows
        finally:
            answer.sent()

    def _append_from(self, caller: Caller, session: ClientSession, action: Any) -> AppendAnswer:
        permit = self._permit(caller)
        if permit is None or caller.client is None:
            return self._append(
                session, read_small_append(decode_request(action.body, SmallAppend))
            )
        max_bytes = MAX_CALL_BYTES if action.type == REMOTE_APPEND else MAX_MESSAGE_BYTES
        requests = self._remote_clients().budgets.requests
        # The front has counted what gRPC holds. Decoding copies the batches once more.
        with requests.taken(caller.client, action.body.size):
            sent: SmallAppend = decode_request(action.body, SmallAppend, max_bytes)
            permit.check(sent)
            # The batches are held twice: unpacked, and encoded for the log.
            with requests.taken(caller.client, 2 * claimed_by(sent)):
                appends = read_small_append(sent)
                permit.check_records(appends)
                return self._append(session, appends)

    def _append(self, session: ClientSession, appends: list[Append]) -> AppendAnswer:
        if any(append.producer is None for append in appends):
            raise InvalidRequest("an append over the wire needs a producer; call init_producer")
        opening = {a.producer for a in appends if a.producer and a.transactional}
        with session.changing(*opening):
            return AppendAnswer(self._broker.append(appends))

    def _poll(
        self,
        context: Any,
        request: FetchRequest,
        read: Callable[..., dict[TopicPartition, T]],
        is_new: Callable[[T, int], bool],
    ) -> dict[TopicPartition, T]:
        """Return the result of `read` once something is new, time is up or the client is gone."""
        positions = request.positions
        deadline = self._clock.monotonic() + request.timeout
        while True:
            left = max(0.0, deadline - self._clock.monotonic())
            found = read(
                positions,
                max_bytes=min(request.max_bytes, MAX_FETCH_BYTES),
                isolation=request.isolation,
                timeout=min(left, POLL_SLICE_S),
            )
            over = left <= POLL_SLICE_S or context.is_cancelled() or self.goodbyes.all_said
            if over or any(is_new(one, positions[tp]) for tp, one in found.items()):
                return found


def _caller(context: Any) -> Caller:
    """Return the caller of a call.

    Raises Unauthenticated if the call came on another connection than its credential belongs to.
    The middleware that has found the client cannot see the connection.
    """
    caller: Caller = context.get_middleware(GATE)
    if caller.client is not None and caller.client.peer != context.peer():
        raise Unauthenticated("this credential belongs to another connection")
    return caller


def _wait_until_closed(reader: Any) -> None:
    """Wait until the client closes its side of the stream or dies."""
    with contextlib.suppress(StopIteration, flight.FlightError, OSError):
        while True:
            reader.read_chunk()


def _encoded(request: Request[Any], answer: Any) -> list[bytes]:
    """Return the messages of an answer: several pages if it is a long list."""
    return encode_pages(answer) if request.paged else [encode(answer)]


def _answer(writer: Any, answer: AppendAnswer) -> None:
    """Send the answer to an append. Raises FlightError if the client is gone.

    A FlightError is not logged, since a client that disconnects is no failure of the owner.
    """
    try:
        writer.write(encode(answer))
    except OSError as error:
        raise flight.FlightUnavailableError(f"the answer cannot be sent: {error}") from None


def _has_new_records(fetched: Fetched, position: int) -> bool:
    return bool(fetched.batches) or fetched.next_offset != position


def _has_pieces(view: RecordView, _position: int) -> bool:
    return bool(view.pieces)


@contextlib.contextmanager
def _failures_sent() -> Iterator[None]:
    """Send errors to the client by type and message.

    The raised error keeps no traceback, because its frames refer to the readers and writers of the
    call, which must not outlive it. For the same reason the log gets the traceback as text.
    """
    failure = None
    try:
        yield
    except flight.FlightError:
        raise
    except Exception as error:
        failure = failure_of(error)
        if not isinstance(error, StrandlineError):
            _log.error("a call failed in an unexpected way:\n%s", traceback.format_exc())
    if failure is not None:
        raise flight.FlightServerError("refused", encode(failure))


def _with_failures_sent(rows: Iterator[StreamMessage]) -> Iterator[StreamMessage]:
    with _failures_sent():
        yield from rows
