"""Limits on calls and bytes in flight over TCP, counted before memory or a thread is used."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from strandline.changelog.errors import QuotaExceeded
from strandline.changelog.flight.clients import Client
from strandline.changelog.flight.limits import RESERVING_S, ListenerLimits


class ClientBudget:
    """A limit for each client, and one for all clients together.

    A client that exceeds its own limit is refused. If the total limit is reached, the client that
    uses most is disconnected. What its calls hold stays counted until they have returned it, and
    the others wait for that. So the counted sum is what is held at every moment. There is no
    deadlock, because a client that is gone takes nothing any more, and its calls wait for no peer.

    Args:
        what: Name of the counted thing in errors.
        each: Maximum of one client.
        total: Maximum of all clients together.
    """

    def __init__(self, what: str, each: int, total: int) -> None:
        self._what = what
        self._each = each
        self._total = total
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        """Notified when a reservation ends."""
        self._held: Counter[Client] = Counter()
        self._sum = 0
        self._reserved: Counter[Client] = Counter()
        """Part of the held amounts whose use is not known yet."""

    def room(self, client: Client) -> int:
        """Return the amount that a client may still take."""
        return self._each - self._held[client]

    def take(self, client: Client, amount: int) -> None:
        """Count `amount` for a client, or raise QuotaExceeded without counting it."""
        while True:
            with self._settled:
                if not self._settled.wait_for(lambda: self._may_take(client, amount), RESERVING_S):
                    raise QuotaExceeded(
                        f"connections that have ended still use {self._what} after {RESERVING_S:.0f} s; "
                        "try again later"
                    )
                _check(client)
                if self._held[client] + amount > self._each:
                    raise QuotaExceeded(
                        f"this client would have {self._held[client] + amount:,} {self._what} in flight, at most "
                        f"{self._each:,} are allowed; wait for its calls, or make smaller ones"
                    )
                if self._sum + amount <= self._total:
                    self._held[client] += amount
                    self._sum += amount
                    return
                connected = (one for one in self._held if not one.is_gone)
                largest = max(connected, key=self._held.__getitem__, default=client)
                if largest is client:
                    raise QuotaExceeded(
                        f"all clients together would have {self._sum + amount:,} {self._what} in flight, at "
                        f"most {self._total:,} are allowed, and this one has the most; try again later"
                    )
                most = self._held[largest]
            largest.drop(
                f"it had the most {self._what} in flight ({most:,}) when all clients together "
                f"reached the limit of {self._total:,}"
            )
            self.wake()

    def reserve(self, client: Client, amount: int) -> int:
        """Take up to `amount` before its use is known, and return the reserved amount.

        If other calls have reserved what is missing, it waits until they know their use. It also
        waits for the calls of clients that are gone. They all wait for no peer, so this is not for
        long. Without such calls, what is left is reserved. Call `settle` and `give` afterwards.
        Raises QuotaExceeded if the client has nothing left, or is gone.
        """
        amount = min(amount, self._each)
        with self._settled:
            if not self._settled.wait_for(lambda: self._may_reserve(client, amount), RESERVING_S):
                raise QuotaExceeded(
                    f"other calls have reserved all {self._what} for {RESERVING_S:.0f} s; try again later"
                )
            _check(client)
            if self._held[client] >= self._each:
                raise QuotaExceeded(
                    f"this client has {self._held[client]:,} {self._what} that it has not read, at "
                    f"most {self._each:,} are allowed; read the answers first"
                )
            amount = max(1, min(amount, self._room(client)))
            self._held[client] += amount
            self._sum += amount
            self._reserved[client] += amount
            return amount

    def settle(self, client: Client, reserved: int, used: int) -> None:
        """End a reservation: count `used` instead of it.

        Raises QuotaExceeded; then `reserved` stays counted until it is given back, because the
        caller still has what it has read.
        """
        try:
            if used > reserved:
                # Until this is counted, the reservation keeps other calls from exceeding the limit
                # at the same time.
                self.take(client, used - reserved)
        finally:
            with self._settled:
                self._reserved[client] -= reserved
                if not self._reserved[client]:
                    del self._reserved[client]
                self._give(client, max(0, reserved - used))

    def _may_take(self, client: Client, amount: int) -> bool:
        """Return False while the amount will be free once the calls of lost clients have ended."""
        refused = client.is_gone or self._held[client] + amount > self._each
        over = self._sum + amount - self._total
        return refused or over <= 0 or over > self._leaving()

    def _leaving(self) -> int:
        """Return what the calls of clients that are gone still hold."""
        return sum(amount for one, amount in self._held.items() if one.is_gone)

    def _may_reserve(self, client: Client, amount: int) -> bool:
        """Return True if `amount` is free, or waiting for reservations could not free more."""
        if client.is_gone or amount <= self._room(client):
            return True
        if self._each - self._held[client] < amount:
            return not self._reserved[client]
        return not (self._reserved.total() or self._leaving())

    def _room(self, client: Client) -> int:
        return min(self._each - self._held[client], self._total - self._sum)

    def give(self, client: Client, amount: int) -> None:
        """Return an amount that was counted; also for a client that is gone, until it has none left."""
        with self._settled:
            self._give(client, amount)

    def _give(self, client: Client, amount: int) -> None:
        amount = min(amount, self._held[client])
        self._sum -= amount
        self._held[client] -= amount
        if not self._held[client]:
            del self._held[client]
        self._settled.notify_all()

    def has_room(self, client: Client) -> bool:
        """Return True if neither the client nor all clients together have reached their limit."""
        return self._room(client) > 0

    def add(self, client: Client, amount: int) -> None:
        """Count an amount that is in use already, also beyond the limits. Call `give` afterwards."""
        with self._lock:
            self._held[client] += amount
            self._sum += amount

    def forget(self, client: Client) -> None:
        """Return everything that was counted for a client, whose calls must have ended."""
        with self._settled:
            self._give(client, self._held[client])

    def wake(self) -> None:
        """Make waiting calls look if their client is gone."""
        with self._settled:
            self._settled.notify_all()

    @contextmanager
    def taken(self, client: Client, amount: int) -> Iterator[None]:
        """Count `amount` for a client within `with`. Raises QuotaExceeded."""
        self.take(client, amount)
        try:
            yield
        finally:
            self.give(client, amount)


def _check(client: Client) -> None:
    if client.is_gone:
        raise QuotaExceeded("the connection of this client has ended")


class Budgets:
    """All budgets of one listener."""

    def __init__(self, limits: ListenerLimits) -> None:
        self.limits = limits
        self.calls = ClientBudget("calls", limits.max_calls_per_client, limits.max_calls)
        self.requests = ClientBudget(
            "bytes of requests", limits.max_request_bytes_per_client, limits.max_request_bytes
        )
        self.answers = ClientBudget(
            "bytes of answers", limits.max_answer_bytes_per_client, limits.max_answer_bytes
        )

    def end(self, client: Client) -> None:
        """End the waiting of a client that is gone, and stop counting it when its calls have ended.

        Answers are not included, because each call returns its own bytes once it has released them.
        """
        self.wake()
        client.after_calls(lambda: self._forget(client))

    def wake(self) -> None:
        """Make waiting calls look if their client is gone."""
        for budget in (self.calls, self.requests, self.answers):
            budget.wake()

    def _forget(self, client: Client) -> None:
        self.calls.forget(client)
        self.requests.forget(client)
