"""Workarounds for errors raised while librdkafka makes callbacks.

When a producer or a static member is fenced, the error is raised in the call that is active then.
confluent-kafka (at least until 2.16) sets the error as the current Python exception, but continues
to make callbacks. Code in a callback may notice the pending exception and fail, and its exception
leaves the call instead:

- usually a SystemError whose cause is the KafkaException;
- before Python 3.12 also a bare KafkaError that should be inside a KafkaException. It can be raised
  but is no BaseException, so that no `except` with a type catches it;
- before Python 3.12 with a leaked reference, so that the exception is never freed. Its traceback
  keeps everything on the stack alive: the client and its threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from confluent_kafka import KafkaError, KafkaException

P = ParamSpec("P")
T = TypeVar("T")


def in_callback(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that librdkafka calls, to handle a pending exception in time."""

    @wraps(function)
    def wrapper(*args: P.args, **named: P.kwargs) -> T:
        try:
            return function(*args, **named)
        # Entering the handler makes Python turn a pending error into a complete exception.
        except BaseException as raised:
            _release_stack(raised)
            raise

    return wrapper


def called(call: Callable[[], T]) -> T:
    """Return the result of `call`, which makes callbacks. Raises KafkaException for its errors."""
    try:
        return call()
    except (KafkaException, SystemError) as raised:
        error = _extract_error(raised)
        if error is None:
            raise
    except:  # noqa: E722
        bare: object = sys.exc_info()[1]
        if not isinstance(bare, KafkaError):
            raise
        error = bare
    # A new exception, raised outside of the handlers, so that it has no context.
    raise KafkaException(error)


def _extract_error(raised: BaseException) -> KafkaError | None:
    """Return the KafkaError in an exception, if any, and release the exception's stack."""
    inner = raised if isinstance(raised, KafkaException) else raised.__cause__
    if not isinstance(inner, KafkaException):
        return None
    error: KafkaError = inner.args[0]
    _release_stack(raised)
    return error


def _release_stack(raised: BaseException) -> None:
    """Remove the references to the stack from an exception and its cause."""
    for one in (raised, raised.__cause__):
        if one is not None:
            one.__traceback__ = one.__context__ = None
