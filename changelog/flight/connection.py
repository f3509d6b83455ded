"""One connection to the owner of a log: its session stream, its calls and their deadlines.

The connection begins and ends with its session stream. A call that is not answered in time raises
OwnerUnavailable, which names the owner. The connection stays open after that, unless the call is
blocked in a write. Only this module translates Flight's errors.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeVar

from pyarrow import flight

from strandline.changelog.errors import OwnerUnavailable
from strandline.changelog.flight.batches import (
    ROW_SCHEMA,
    append_rows,
    check_remote_append,
    read_fetched,
    rows_of,
    small_append,
)
from strandline.changelog.flight.connection_target import ConnectionTarget, call_headers
from strandline.changelog.flight.flight_calls import (
    FOREIGN_ERRORS,
    CallStuck,
    call_within,
    no_answer,
)
from strandline.changelog.flight.fork import ForkGuard
from strandline.changelog.flight.grants import (
    GRANTS_HEADER,
    Grants,
    Subject,
    opened_by,
    producers_of,
    subjects_of,
)
from strandline.changelog.flight.limits import LARGE_APPEND_BYTES
from strandline.changelog.flight.messages import (
    APPEND,
    LOCATE,
    MAX_SMALL_APPEND_BYTES,
    REMOTE_APPEND,
    SMALL_APPEND,
    AppendAnswer,
    FetchRequest,
    FlightMessage,
    Located,
    decode,
    decode_answer,
    encode,
)
from strandline.changelog.flight.requests import Request, answer_of
from strandline.changelog.flight.session_stream import SessionStream
from strandline.changelog.records import Append, Appended, Fetched, TopicPartition

T = TypeVar("T")


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
        self._headers = call_headers(self.session.credential, self.session.welcome.session)

    def close(self) -> None:
        """End the session. Idempotent; does nothing in a forked child."""
        if not self._fork.foreign:
            self.session.close()

    def ask(self, request: Request[Any], extra_s: float = 0.0) -> Any:
        """Return the answer to a request; `extra_s` seconds are added to its deadline."""
        kind = type(request)
        subjects = subjects_of(request) if self.session.relayed else ()
        if kind.paged:
            results = self._results(kind.__name__, request, extra_s, subjects)
            return [item for page in results for item in decode_answer(page, answer_of(kind))]
        answer, granted = self._act(kind.__name__, request, answer_of(kind), extra_s, subjects)
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
                answer = call_within(lambda: self._send(appends), self._deadline)
        acknowledged: AppendAnswer = decode(answer, AppendAnswer)
        return acknowledged.appended

    def _append_over_tcp(self, appends: Sequence[Append], size: int) -> bytes:
        """Send batches over TCP in one message, because the server reads no streams of clients."""
        check_remote_append(size)

        def send() -> bytes:
            action = flight.Action(REMOTE_APPEND, encode(small_append(appends)))
            options = self._options(subjects=producers_of(appends))
            (result,) = self._client.do_action(action, options)
            return bytes(result.body)

        # One at a time: together they could exceed the bytes that a client may have in flight.
        with self._large_appends if size > LARGE_APPEND_BYTES else contextlib.nullcontext():
            return call_within(send, self._deadline)

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
        except CallStuck:
            late = no_answer(self._target, self._deadline)
            self.session.mark_lost(str(late))
            raise late from None
        except FOREIGN_ERRORS as error:
            self.session.raise_translated(error, call, self._deadline)
