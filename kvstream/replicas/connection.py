"""A replica's connection to a server: TLS, authentication, requests, and what comes back."""

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvstream.engine.following import Source
from kvstream.errors import AccessDenied, KVStreamError, ProtocolError, ReplicationRefused
from kvstream.replicas import protocol
from kvstream.replicas.protocol import FrameReader
from kvstream.types.clock import monotonic

CONNECT_S = 5.0
RECEIVED = 256 << 10
"""Bytes that are received at a time, and acknowledged together."""


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """How a replica connects; times in seconds."""

    port: int = 0
    """The port at which the replica itself serves, for the primary to show."""
    announce_ip: str = ""
    user: str = ""
    password: str = ""
    timeout_s: float = 60.0
    tls: Callable[[], ssl.SSLContext] | None = None
    """Makes the context of TLS; None: a plain connection."""


def link_context(
    authorities: Path | None, certificate: Path | None, key: Path | None, password: str
) -> ssl.SSLContext:
    """Return a context that trusts some authorities, and shows an own certificate.

    As in Redis the certificate of the primary must be of one of these authorities, for any host.
    Raises OSError if a file cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if authorities is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(authorities)
    if certificate is not None:
        context.load_cert_chain(certificate, key, password)
    return context


class Connection:
    """A connection that one thread uses; another one may ``shut`` it."""

    def __init__(self, source: Source, options: LinkOptions) -> None:
        """Connect; raises OSError."""
        self._options = options
        timeout_s = min(CONNECT_S, options.timeout_s)
        self._socket: socket.socket = socket.create_connection(source, timeout_s)
        try:
            if options.tls is not None:
                context = options.tls()
                self._socket = context.wrap_socket(self._socket, server_hostname=source.host)
            self._socket.settimeout(options.timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            self._socket.close()
            raise
        self.reader = FrameReader()
        self.last_io = monotonic()

    def shut(self) -> None:
        """End what is under way; any thread may call it."""
        with suppress(OSError):  # SSLSocket's own method would break the other thread's read
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def authenticate(self) -> None:
        """Authenticate, if there is a password; AccessDenied if it is wrong."""
        options = self._options
        if options.password:
            words = [options.user, options.password] if options.user else [options.password]
            if (answer := self.ask("AUTH", *words))[:1] == b"-":
                raise AccessDenied(answer[1:].decode("utf-8", "replace"))

    def introduce(self) -> None:
        """Authenticate, and say where this replica listens."""
        self.authenticate()
        options = self._options
        settings: list[str | int] = ["listening-port", options.port]
        if options.announce_ip:
            settings += ["ip-address", options.announce_ip]
        answer = self.ask("REPLCONF", *settings, "capa", "kvstream")
        if answer[:1] == b"-":
            raise refusal_of(answer)

    def ask(self, *words: str | int) -> bytes:
        """Send a request, and return the first line of the reply."""
        self.send(protocol.encode_request(*words))
        return self.line()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._socket.sendall(data)

    def line(self) -> bytes:
        """Return the next line."""
        while (line := self.reader.line()) is None:
            self.receive()
        return line

    def receive(self) -> None:
        """Wait for bytes; OSError if none come within the timeout, or the link has ended."""
        data = self._socket.recv(RECEIVED)
        if not data:
            raise OSError("the primary has closed it")
        self.reader.feed(data)
        self.last_io = monotonic()


def refusal_of(answer: bytes) -> KVStreamError:
    """Return the error of a reply that is one."""
    text = answer[1:].decode("utf-8", "replace")
    if text.startswith("NOAUTH"):
        return AccessDenied(f"{text} Set masterauth")
    return ReplicationRefused(text)


def ask_for_primary(source: Source, options: LinkOptions) -> int | None:
    """Return the position of a server if it is a primary; None if it is a replica.

    Raises OSError if it cannot be reached, KVStreamError if it does not answer as it should.
    """
    connection = Connection(source, options)
    try:
        connection.authenticate()
        answer = connection.ask("ROLE")
        if answer[:1] == b"-":
            raise refusal_of(answer)
        connection.line()  # the length of the first element
        if connection.line() != b"master":
            return None
        return int(connection.line()[1:])
    except ValueError:
        raise ProtocolError("no reply to ROLE") from None
    finally:
        connection.close()
