"""Calls of librdkafka that make callbacks, and what comes out of them.

A producer, or a static member, that is fenced raises that within whatever call it is in. confluent-kafka
(until 2.16 at least) puts the error up as raised, and goes on making callbacks. Whatever in one of them
stumbles over it ends the callback, and its exception comes out of the call instead:

- as a rule a SystemError with the KafkaException as its cause;
- before Python 3.12 also the KafkaError that should be in a KafkaException. It can be raised, but is no
  BaseException, so no `except` with a type catches it;
- before Python 3.12 with one reference too many. So it stays in memory for ever with its traceback, and
  all that was on the stack: the client and its threads.
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
    """For functions that librdkafka calls: has an error that was only put up made whole, in time."""

    @wraps(function)
    def whole(*args: P.args, **named: P.kwargs) -> T:
        try:
            return function(*args, **named)
        except BaseException as raised:  # entering this makes the exception of it
            _let_go(raised)
            raise

    return whole


def called(call: Callable[[], T]) -> T:
    """What `call` gives, which makes callbacks. What it raises of Kafka's is a KafkaException."""
    try:
        return call()
    except (KafkaException, SystemError) as raised:
        error = _taken_out(raised)
        if error is None:
            raise
    except:  # noqa: E722
        bare: object = sys.exc_info()[1]
        if not isinstance(bare, KafkaError):
            raise
        error = bare
    raise KafkaException(error)  # another one, out here, where it has no context


def _taken_out(raised: BaseException) -> KafkaError | None:
    """The error in it; if there is one the exceptions around it hold on to nothing any more."""
    inner = raised if isinstance(raised, KafkaException) else raised.__cause__
    if not isinstance(inner, KafkaException):
        return None
    error: KafkaError = inner.args[0]
    _let_go(raised)
    return error


def _let_go(raised: BaseException) -> None:
    """Have an exception, and its cause, hold on to nothing of the stack."""
    for one in (raised, raised.__cause__):
        if one is not None:
            one.__traceback__ = one.__context__ = None
