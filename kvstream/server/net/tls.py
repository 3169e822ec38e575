"""TLS: accepted here, so that a connection counts as a client from its first byte.

The event loop's own TLS server reports a connection after its handshake only. Here connections in
the handshake count for ``maxclients``, and have a few seconds to finish it.

Certificates are read and checked when the server starts, and again at SIGHUP. Errors name the file
and the remedy, which OpenSSL's do not.
"""

import asyncio
import fcntl
import logging
import socket
import ssl
import sys
import termios
from functools import partial
from pathlib import Path

from kvstream.errors import InvalidArgument
from kvstream.logs import Throttle
from kvstream.server.net.asyncio_server import BACKLOG, Connection, Listener, address_of
from kvstream.server.options import ServerOptions
from kvstream.server.runtime.limits import FULL

_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
_KEY = "PRIVATE KEY-----"
_MODES = {"yes": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL, "no": ssl.CERT_NONE}


class BadCertificate(InvalidArgument):
    """A TLS file that the server cannot use; the text names the file and the reason."""


def load(options: ServerOptions) -> ssl.SSLContext:
    """Return the TLS context; raise BadCertificate if a file is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # it costs the server more than the client
    if options.tls_cert_file is None or options.tls_key_file is None:
        raise BadCertificate("tls-port needs tls-cert-file and tls-key-file")
    check_files(options)
    _load_own(context, options.tls_cert_file, options.tls_key_file, options)
    _load_authorities(context, options)
    return context


def list_files(options: ServerOptions) -> list[tuple[str, Path, str, str]]:
    """List the files that the options name: option, path, mark of the content, and its name."""
    possible = (
        ("tls-cert-file", options.tls_cert_file, _CERTIFICATE, "certificate"),
        ("tls-key-file", options.tls_key_file, _KEY, "private key"),
        ("tls-ca-cert-file", options.tls_ca_cert_file, _CERTIFICATE, "certificate"),
    )
    return [(option, path, mark, what) for option, path, mark, what in possible if path is not None]


def check_files(options: ServerOptions) -> None:
    """Raise BadCertificate if a file that the options name does not hold what it should."""
    for option, path, mark, what in list_files(options):
        _read(option, path, mark, what)


def _load_own(
    context: ssl.SSLContext, certificate: Path, key: Path, options: ServerOptions
) -> None:
    asked: list[str] = []

    def password() -> str:
        asked.append(options.tls_key_file_pass)
        if not asked[0]:
            raise BadCertificate(
                f"tls-key-file {key}: the key is encrypted: give tls-key-file-pass"
            )
        return asked[0]

    try:
        context.load_cert_chain(certificate, key, password)
    except ssl.SSLError as error:
        if asked and error.reason is None:  # OpenSSL gives no reason for a wrong passphrase
            reason = "tls-key-file-pass is not the password of the key"
            raise BadCertificate(f"tls-key-file {key}: {reason}") from None
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = f"the key is not that of the certificate in {certificate}"
            raise BadCertificate(f"tls-key-file {key}: {reason}") from None
        both = f"tls-cert-file {certificate}, tls-key-file {key}"
        raise BadCertificate(f"{both}: {_reason(error)}") from None


def _load_authorities(context: ssl.SSLContext, options: ServerOptions) -> None:
    authorities = options.tls_ca_cert_file
    if authorities is not None:
        try:
            context.load_verify_locations(authorities)
        except ssl.SSLError as error:
            raise BadCertificate(f"tls-ca-cert-file {authorities}: {_reason(error)}") from None
    elif options.tls_auth_clients != "no":
        raise BadCertificate(
            "tls-auth-clients needs tls-ca-cert-file, which says whose certificates clients may "
            "have; or let clients have none: tls-auth-clients no"
        )
    context.verify_mode = _MODES[options.tls_auth_clients]


def _read(option: str, path: Path, mark: str, what: str) -> None:
    """Raise BadCertificate if a file cannot be read or does not contain a mark."""
    try:
        text = path.read_text("ascii", "replace")
    except OSError as error:
        raise BadCertificate(f"{option} {path}: {error.strerror}") from None
    if mark not in text:
        raise BadCertificate(f"{option} {path}: there is no {what} in PEM in it")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


SHUTDOWN_S = 5.0
"""Seconds for the other side to take the last bytes of a connection."""
SENT_PAUSE_S = 0.005
"""Seconds between two checks whether it has them."""
CHUNK = 64 << 10
"""Bytes that are encrypted together. More would enter the socket's buffer as one piece, where the
limits on unread replies do not see it."""
NO_DESCRIPTORS_PAUSE_S = 1.0
"""Seconds without accepting after the descriptors ran out, as in asyncio."""

_log = logging.getLogger(__name__)


class SecuredConnection(Connection):
    """A connection after its handshake."""

    def eof_received(self) -> bool:
        """Answer what has arrived: the transport closes both directions after this call."""
        if super().eof_received():
            self._listener.turn()
        return False

    def close(self) -> None:
        """Close once the other side has the written bytes; an idle client confirms no end."""
        if self.transport is not None and not self.transport.is_closing():
            super().close()  # a second close() would take asyncio's transport from its socket
            self._close_when_sent(was_sent=False)

    def _close_when_sent(self, *, was_sent: bool) -> None:
        """Close if two checks find all bytes sent: between them the transport writes the rest."""
        connection = None if self.transport is None else self.transport.get_extra_info("socket")
        if connection is None or connection.fileno() < 0:
            return
        sent = not (self.pending_output() or _count_unconfirmed(connection.fileno()))
        if sent and was_sent:
            self.abort()
            return
        look = partial(self._close_when_sent, was_sent=sent)
        asyncio.get_running_loop().call_later(SENT_PAUSE_S, look)

    def send(self, data: bytes) -> None:
        for at in range(0, len(data), CHUNK):
            super().send(data[at : at + CHUNK])


def _count_unconfirmed(descriptor: int) -> int:
    """Return how many sent bytes the other side has not confirmed yet."""
    count = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(count, sys.byteorder)


class SecuredServer:
    """The listening sockets of one port, and its connections in the handshake."""

    def __init__(self, listener: Listener, sockets: list[socket.socket]) -> None:
        self._listener = listener
        self._failures = Throttle()
        self.sockets = sockets
        self._loop = asyncio.get_running_loop()
        self._open()

    def close(self) -> None:
        """Stop accepting connections."""
        for each in self.sockets:
            self._loop.remove_reader(each)
            each.close()

    def _open(self) -> None:
        for each in self.sockets:
            if each.fileno() >= 0:  # it may be closed already
                self._loop.add_reader(each, self._accept, each)

    def _accept(self, door: socket.socket) -> None:
        for _ in range(BACKLOG):
            try:
                connection, address = door.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("cannot accept connections: %s", error.strerror)
                self._pause()
                return
            self._welcome(connection, address_of(address))

    def _pause(self) -> None:
        for each in self.sockets:
            self._loop.remove_reader(each)
        self._loop.call_later(NO_DESCRIPTORS_PAUSE_S, self._open)

    def _welcome(self, connection: socket.socket, address: str) -> None:
        limits = self._listener.executor.limits
        if not limits.has_room():
            limits.refuse(address, FULL)
            connection.close()  # a plain-text error would not be understood
            return
        connection.setblocking(False)
        limits.entering += 1
        self._listener.begin(self._shake_hands(connection, address))

    async def _shake_hands(self, connection: socket.socket, address: str) -> None:
        executor = self._listener.executor
        done = False
        try:
            await self._loop.connect_accepted_socket(
                partial(SecuredConnection, self._listener),
                connection,
                ssl=self._listener.tls,
                ssl_handshake_timeout=executor.options.tls_handshake_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
            done = True
        except OSError as error:  # no TLS, a bad certificate, a timeout, or a lost connection
            text = "the handshake of %s has failed: %s"
            self._failures.log(_log, logging.INFO, text, address, error)
        finally:
            executor.limits.entering -= 1
            if not done:
                connection.close()


async def listen_secured(listener: Listener, host: str, port: int) -> SecuredServer:
    """Accept TLS connections on a port of all addresses of a host."""
    addresses = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((info[0], info[4]) for info in addresses):
            sockets.append(socket.create_server(address, family=family, backlog=BACKLOG))
            sockets[-1].setblocking(False)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return SecuredServer(listener, sockets)
