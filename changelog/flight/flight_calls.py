"""Calls of the owner with a deadline, and its errors as those of this package."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from strandline.changelog.errors import OwnerUnavailable, StrandlineError
from strandline.changelog.flight.connection_target import ConnectionTarget
from strandline.changelog.flight.messages import (
    RemoteFailure,
    SessionEnded,
    decode,
    error_of,
)

T = TypeVar("T")

_MARGIN_S = 0.1
"""Seconds to wait beyond gRPC's own deadline, whose error is more precise."""


FOREIGN_ERRORS = (flight.FlightError, pa.ArrowException, OSError)
"""Errors of Arrow Flight and of sockets, which `translated` turns into those of this package."""


class CallStuck(Exception):
    """A write did not return in time."""


def call_within(call: Callable[[], T], seconds: float) -> T:
    """Return the result of `call`; raise CallStuck if it takes longer than `seconds`.

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
        raise CallStuck from None


@contextlib.contextmanager
def alarm(seconds: float, late: threading.Event, cancel: Callable[[], None]) -> Iterator[None]:
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


def cancel_stream(reader: Any) -> None:
    """Cancel the stream of a reader, whatever its state."""
    with contextlib.suppress(*FOREIGN_ERRORS):
        reader.cancel()


def translated(
    error: Exception, target: ConnectionTarget, call: str, deadline: float
) -> StrandlineError:
    """Return the owner's error, or one that says why there is no answer.

    Args:
        error: One of FOREIGN_ERRORS.
        target: The log that was called.
        call: Name of the call.
        deadline: Seconds that the call had.
    """
    sent = getattr(error, "extra_info", None)
    if sent:
        failure: RemoteFailure = decode(sent, RemoteFailure)
        return error_of(failure)
    if isinstance(error, flight.FlightTimedOutError):
        return no_answer(target, deadline)
    # The rest of gRPC's message repeats its beginning several times.
    said = str(error).partition(" gRPC client debug context")[0]
    if isinstance(error, flight.FlightUnavailableError | flight.FlightCancelledError):
        return SessionEnded(f"the owner of {target.name} is gone ({call}: {said})")
    return StrandlineError(f"{call} on {target.name} failed: {said}")


def no_answer(target: ConnectionTarget, deadline: float) -> OwnerUnavailable:
    """Return the error of a call that got no answer within `deadline` seconds."""
    late = OwnerUnavailable(_no_answer_text(target))
    late.waited = deadline
    return late


def _no_answer_text(target: ConnectionTarget) -> str:
    endpoint = target.endpoint
    if endpoint is None:
        return f"{target.name} did not answer"
    life = endpoint.life()
    if life == "unknown":  # the pid would be that of another process here
        return (
            f"the owner of {target.name}, in another container, did not answer; resume it or end it "
            "there, so that another process takes over"
        )
    state = "is stopped" if life == "stopped" else "did not answer"
    return (
        f"the owner of {target.name}, process {endpoint.pid}, {state}; "
        f"resume it (kill -CONT {endpoint.pid}), or end it (kill -9 {endpoint.pid}) so that another "
        "process takes over"
    )
