"""Tokens that a served log accepts: the admin token, and those in the tokens file of its folder."""

from __future__ import annotations

import logging
import threading
from typing import NamedTuple

from strandline.changelog.errors import InvalidConfig, StrandlineError
from strandline.changelog.flight import hello, tokens
from strandline.changelog.flight.clients import Principal
from strandline.changelog.flight.grants import Granting
from strandline.changelog.flight.rights import ALL
from strandline.changelog.layout import TOKENS
from strandline.changelog.storage import Storage

_log = logging.getLogger("strandline")

ADMIN_NAME = "admin"


class _Known(NamedTuple):
    """Content of the tokens file, as it was when it had this stamp."""

    stamp: object
    callers: dict[str, Principal]


class TokenAuthority:
    """Implementation of Authority. Thread-safe.

    Each hello and each call checks the tokens file by `stat`, and reads it if it was replaced.
    While it cannot be read, its tokens have no access. The admin token is not in it and remains
    valid.

    Args:
        storage: Folder of the log.
        admin_token: Token that `strandline serve` was given.

    Raises:
        InvalidConfig: The admin token looks like a token created by `strandline tokens`.
        CorruptLog: The tokens file is damaged.
        FutureFormat: A later version wrote the tokens file.
    """

    def __init__(self, storage: Storage, admin_token: str) -> None:
        if hello.token_id(admin_token):
            raise InvalidConfig(
                "the token of `serve` has an id, like tokens created by `strandline tokens`; use another "
                "token (STRANDLINE_TOKEN, --token-file), or none, then one is generated"
            )
        self._storage = storage
        self._admin = Principal(ADMIN_NAME, hello.verifier_of(admin_token), "", ALL)
        self._granting = Granting(tokens.grant_key(storage))
        self._lock = threading.Lock()
        stamp = storage.stamp(TOKENS)
        self._known = _Known(stamp, self._read())

    @property
    def granting(self) -> Granting:
        """Issuer and checker of grants."""
        return self._granting

    def authenticate(self, token_id: str) -> Principal | None:
        """Return the principal of a token id ("" for the admin token); None if it is unknown."""
        return self._callers().get(token_id) if token_id else self._admin

    def is_valid(self, caller: Principal) -> bool:
        """Return True if an authenticated token has not been revoked since."""
        return caller is self._admin or self._callers().get(caller.token_id) == caller

    def _callers(self) -> dict[str, Principal]:
        try:
            stamp = self._storage.stamp(TOKENS)
        except StrandlineError as error:
            _log.error("no token made by `strandline tokens` has access: %s", error)
            return {}
        # Read without the lock: `_known` is replaced as a whole, so stamp and callers match.
        known = self._known
        if stamp == known.stamp:
            return known.callers
        with self._lock:
            if stamp != self._known.stamp:
                self._known = _Known(stamp, self._read_if_sound())
            return self._known.callers

    def _read_if_sound(self) -> dict[str, Principal]:
        try:
            return self._read()
        except StrandlineError as error:
            _log.error("no token made by `strandline tokens` has access: %s", error)
            return {}

    def _read(self) -> dict[str, Principal]:
        return {
            one.id: Principal(one.name, one.verifier, one.id, one.rights)
            for one in tokens.stored_tokens(self._storage)
        }
