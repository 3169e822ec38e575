"""TLS: connections that are secured before they are like any other.

They are accepted here, for the event loop would tell of one only when its handshake is over; so one
counts among the clients from its first byte, strangers cannot have more of them than clients may,
and each has few seconds to say who it is.

The certificates of TLS: files read and checked when the server starts, and again at SIGHUP.

This module knows no connection. What is wrong with a file is told in its own words: OpenSSL's say
neither which file it is nor what to do.
"""

import asyncio
import logging
import socket
import ssl
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
    """A file of TLS that the server cannot use; the text names it and says why."""


def load(options: ServerOptions) -> ssl.SSLContext:
    """Return how connections are secured, or raise BadCertificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # each would cost us, not the client, a handshake
    _load_own(context, options)
    _load_authorities(context, options)
    return context


def _load_own(context: ssl.SSLContext, options: ServerOptions) -> None:
    certificate, key = options.tls_cert_file, options.tls_key_file
    if certificate is None or key is None:
        raise BadCertificate("tls-port needs tls-cert-file and tls-key-file")
    _read("tls-cert-file", certificate, _CERTIFICATE, "certificate")
    _read("tls-key-file", key, _KEY, "private key")

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
        if asked and error.reason is None:  # OpenSSL tells no more
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
        _read("tls-ca-cert-file", authorities, _CERTIFICATE, "certificate")
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
    """Refuse a file that cannot be read, or that has nothing of what is wanted in it."""
    try:
        text = path.read_text("ascii", "replace")
    except OSError as error:
        raise BadCertificate(f"{option} {path}: {error.strerror}") from None
    if mark not in text:
        raise BadCertificate(f"{option} {path}: there is no {what} in PEM in it")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


SHUTDOWN_S = 5.0
"""Time in which the other side must agree to the end of a connection."""
CHUNK = 64 << 10
"""Bytes that are encrypted together: what is larger would go into the buffer of the socket as one
piece, where nobody counts it."""
NO_DESCRIPTORS_PAUSE_S = 1.0
"""How long nobody is accepted when there are no descriptors left: as long as asyncio pauses."""

_log = logging.getLogger(__name__)


class SecuredConnection(Connection):
    """A connection whose two sides know each other."""

    def eof_received(self) -> bool:
        return False  # TLS ends both ways at once

    def send(self, data: bytes) -> None:
        for at in range(0, len(data), CHUNK):
            super().send(data[at : at + CHUNK])


class SecuredServer:
    """The sockets of one port, and who comes in by them."""

    def __init__(self, listener: Listener, sockets: list[socket.socket]) -> None:
        self._listener = listener
        self._failures = Throttle()
        self.sockets = sockets
        self._loop = asyncio.get_running_loop()
        self._open()

    def close(self) -> None:
        """Take no more connections."""
        for each in self.sockets:
            self._loop.remove_reader(each)
            each.close()

    def _open(self) -> None:
        for each in self.sockets:
            if each.fileno() >= 0:  # closed meanwhile
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
            connection.close()  # it would not understand us
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
        except OSError as error:  # no TLS, no good certificate, too slow, gone
            text = "the handshake of %s has failed: %s"
            self._failures.log(_log, logging.INFO, text, address, error)
        finally:
            executor.limits.entering -= 1
            if not done:
                connection.close()


async def listen_secured(listener: Listener, host: str, port: int) -> SecuredServer:
    """Accept secured connections on a port of all addresses of a host."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((info[0], info[4]) for info in found):
            sockets.append(socket.create_server(address, family=family, backlog=BACKLOG))
            sockets[-1].setblocking(False)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return SecuredServer(listener, sockets)
