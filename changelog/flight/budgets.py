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
    uses most is disconnected. So no client waits for another one, and there is no deadlock.

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
            with self._lock:
                if self._held[client] + amount > self._each:
                    raise QuotaExceeded(
                        f"this client would have {self._held[client] + amount:,} {self._what} in flight, at most "
                        f"{self._each:,} are allowed; wait for its calls, or make smaller ones"
                    )
                if self._sum + amount <= self._total:
                    self._held[client] += amount
                    self._sum += amount
                    return
                largest = max(self._held, key=self._held.__getitem__, default=client)
                if largest is client:
                    raise QuotaExceeded(
                        f"all clients together would have {self._sum + amount:,} {self._what} in flight, at "
                        f"most {self._total:,} are allowed, and this one has the most; try again later"
                    )
                self._forget(largest)
            largest.drop()

    def reserve(self, client: Client, amount: int) -> int:
        """Take up to `amount` before its use is known, and return the reserved amount.

        If other calls have reserved what is missing, it waits until they know their use. They wait
        for no peer, so this is not for long. Without such calls, what is left is reserved.
        Call `settle` afterwards. Raises QuotaExceeded if the client has nothing left.
        """
        amount = min(amount, self._each)
        with self._settled:
            if not self._settled.wait_for(lambda: self._may_reserve(client, amount), RESERVING_S):
                raise QuotaExceeded(
                    f"other calls have reserved all {self._what} for {RESERVING_S:.0f} s; try again later"
                )
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
        """End a reservation: count `used` instead of it. Raises QuotaExceeded, counting nothing."""
        with self._settled:
            left = min(reserved, self._reserved[client])  # 0 for a client that is gone
            self._reserved[client] -= left
            if not self._reserved[client]:
                del self._reserved[client]
            self._give(client, max(0, left - used))
            self._settled.notify_all()
        try:
            self.take(client, max(0, used - left))
        except QuotaExceeded:
            self.give(client, left)
            raise

    def _may_reserve(self, client: Client, amount: int) -> bool:
        """Return True if `amount` is free, or waiting for reservations could not free more."""
        if amount <= self._room(client):
            return True
        mine = self._each - self._held[client] < amount
        return not (self._reserved[client] if mine else self._reserved.total())

    def _room(self, client: Client) -> int:
        return min(self._each - self._held[client], self._total - self._sum)

    def give(self, client: Client, amount: int) -> None:
        """Return an amount that `take` has counted; does nothing for a client that is gone."""
        with self._lock:
            self._give(client, amount)

    def _give(self, client: Client, amount: int) -> None:
        amount = min(amount, self._held[client])
        self._sum -= amount
        self._held[client] -= amount
        if not self._held[client]:
            del self._held[client]

    def forget(self, client: Client) -> None:
        """Return everything that was counted for a client."""
        with self._lock:
            self._forget(client)

    def _forget(self, client: Client) -> None:
        self._sum -= self._held.pop(client, 0)
        self._reserved.pop(client, None)
        self._settled.notify_all()

    @contextmanager
    def taken(self, client: Client, amount: int) -> Iterator[None]:
        """Count `amount` for a client within `with`. Raises QuotaExceeded."""
        self.take(client, amount)
        try:
            yield
        finally:
            self.give(client, amount)


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

    def forget(self, client: Client) -> None:
        """Return everything that was counted for a client."""
        for budget in (self.calls, self.requests, self.answers):
            budget.forget(client)
