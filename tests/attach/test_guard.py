"""A transaction is bound to the connection on which it began."""

from __future__ import annotations

import pytest

from strandline.changelog.errors import TransactionAborted
from strandline.changelog.flight.guard import TransactionGuard
from strandline.changelog.records import ProducerIdentity

ME = ProducerIdentity(1, 0)
NEXT = ProducerIdentity(1, 1)


@pytest.fixture
def guard():
    guard = TransactionGuard()
    guard.sending(ME, 1)
    return guard


def test_all_calls_on_one_connection_pass(guard):
    guard.sending(ME, 1)
    assert guard.ending(ME, 1, commit=True) == "pass on"
    assert guard.ending(ME, 1, commit=True) == "pass on"
    assert guard.ending(ME, 1, commit=False) == "pass on"


def test_calls_on_another_connection_fail_until_the_transaction_is_aborted(guard):
    for _ in range(2):
        with pytest.raises(TransactionAborted, match="epoch 0.*call init_producer"):
            guard.sending(ME, 2)
        with pytest.raises(TransactionAborted):
            guard.ending(ME, 2, commit=True)
    assert guard.ending(ME, 2, commit=False) == "pass on"
    guard.ended(ME)
    guard.sending(ME, 2)


def test_a_commit_in_doubt_is_resolved_and_accepts_no_more_records(guard):
    guard.ending(ME, 1, commit=True)
    assert guard.ending(ME, 2, commit=True) == "resolve"
    assert guard.ending(ME, 3, commit=True) == "resolve"
    with pytest.raises(TransactionAborted):
        guard.sending(ME, 2)


def test_an_ended_transaction_does_not_affect_the_next(guard):
    guard.ended(ME)
    guard.sending(NEXT, 2)
    assert guard.ending(NEXT, 2, commit=True) == "pass on"


def test_a_new_identity_starts_afresh(guard):
    guard.sending(NEXT, 2)
    guard.ended(ME)
    assert guard.ending(NEXT, 2, commit=True) == "pass on"
    with pytest.raises(TransactionAborted):
        guard.sending(NEXT, 3)


def test_the_end_of_an_empty_transaction_is_passed_to_the_owner(guard):
    assert guard.ending(NEXT, 5, commit=True) == "pass on"
