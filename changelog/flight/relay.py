"""The client's side of the front: connects this process's gRPC client with a log over TCP.

The hello must come before the first byte of gRPC, which gRPC cannot do. So a relay connects over
TCP, performs TLS and the hello (hello.py), and then copies bytes between that connection and a Unix
socket in a private folder, to which the gRPC client connects. The socket accepts one connection and
is then removed.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from dataclasses import dataclass

from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidConfig, OwnerUnavailable, StrandlineError
from strandline.changelog.flight.client_hello import authenticate
from strandline.changelog.flight.private import private_socket, remove_private
from strandline.changelog.flight.splice import Splice, end_if_peer_vanishes


@dataclass(frozen=True, slots=True)
class TlsClient:
    """TLS settings of a client."""

    ca: bytes | None = None
    """Trusted certificates (PEM); None for those of the system."""
    certificate: str | None = None
    """Path of the client's own certificate chain (PEM)."""
    key: str | None = None
    """Path of the private key of `certificate` (PEM)."""

    def context(self) -> ssl.SSLContext:
        """Return the TLS context. Raises InvalidConfig for missing files and files not in PEM."""
        try:
            context = ssl.create_default_context(cadata=self.ca.decode() if self.ca else None)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ValueError) as error:
            raise InvalidConfig(
                f"cannot use the certificates of the URL ({error}); ca=, cert= and key= name PEM files: an "
                "authority's certificate, the client's own, and its private key"
            ) from error
        return context


_CERTIFICATE_HINT = (
    "; if it requires certificates of its clients (serve --client-ca), give one from its authority that"
    " is valid now, as cert=… and key=… in the URL"
)


class Relay:
    """Authenticated connection to the log at `host`:`port`, for the gRPC client of this process.

    Args:
        host: Host name or address.
        port: TCP port.
        token: Token that the relay proves to know; it is not sent.
        tls: TLS settings; None for an unencrypted connection.
        name: Name of the log in errors.
        deadline_s: Seconds for connecting, TLS and the hello together.

    Raises:
        OwnerUnavailable: No server listens at the address, or it does not answer in time.
        Unauthenticated: The server refuses the token, or does not know it itself.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        token: str,
        tls: TlsClient | None,
        name: str,
        deadline_s: float,
    ) -> None:
        self._name = name
        self._deadline_s = deadline_s
        self._until = SystemClock().monotonic() + deadline_s
        context = None if tls is None else tls.context()
        peer = self._connected(host, port, context)
        try:
            self.credential = self._greeted(peer, token)
            """Credential that calls carry instead of the token."""
            self._path = private_socket("relay.sock")
        except BaseException:
            peer.close()
            raise
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._peer = peer
        self._splice: Splice | None = None
        self._lock = threading.Lock()
        self._closed = False
        try:
            self._listener.bind(self._path)
            self._listener.listen(1)
            self._listener.settimeout(max(0.1, self._left()))
        except BaseException:
            self.close()
            raise
        self.location = f"grpc+unix://{self._path}"
        """Flight location to which this process's gRPC client connects."""
        self._thread = threading.Thread(target=self._run, name="strandline-relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the connection without waiting for the server. Idempotent."""
        with self._lock:
            self._closed = True
            splice = self._splice
        if splice is not None:
            splice.stop()
            return
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._peer.close()
        remove_private(self._path)

    def _run(self) -> None:
        try:
            near, _ = self._listener.accept()
        except OSError:
            self._peer.close()
            return
        finally:
            self._listener.close()
            remove_private(self._path)
        # Under the lock, so that either `close` finds the splice or this finds `_closed` set.
        with self._lock:
            self._splice = splice = Splice(near, self._peer)
            if self._closed:
                splice.stop()
        splice.run()

    # The hello ------------------------------------------------------------------------------

    def _left(self) -> float:
        """Return the seconds until the deadline. Raises TimeoutError after it."""
        left = self._until - SystemClock().monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def _connected(self, host: str, port: int, context: ssl.SSLContext | None) -> socket.socket:
        try:
            peer = socket.create_connection((host, port), timeout=self._left())
            end_if_peer_vanishes(peer)
            if context is None:
                return peer
            peer.settimeout(self._left())
            try:
                return context.wrap_socket(peer, server_hostname=host)
            except BaseException:
                peer.close()
                raise
        except ssl.SSLCertVerificationError as error:
            raise StrandlineError(
                f"{self._name} has a certificate that is not trusted: {error.verify_message}; give the "
                "authority's certificate as ca=… in the URL"
            ) from error
        except OSError as error:
            raise self._unavailable(error) from error

    def _greeted(self, peer: socket.socket, token: str) -> str:
        """Authenticate both sides, and return the connection's credential."""
        try:
            return authenticate(peer, token, f"the log {self._name}", self._left)
        except OSError as error:
            # With TLS 1.3 a server refuses the client's certificate after the handshake.
            hint = _CERTIFICATE_HINT if isinstance(peer, ssl.SSLSocket) else ""
            raise self._unavailable(error, hint) from error

    def _unavailable(self, error: OSError, hint: str = "") -> OwnerUnavailable:
        if not isinstance(error, TimeoutError):
            return OwnerUnavailable(f"cannot connect to {self._name}: {error}{hint}")
        late = OwnerUnavailable(f"{self._name} did not answer")
        late.waited = self._deadline_s
        return late
