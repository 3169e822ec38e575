"""The certificates of TLS: files read and checked when the server starts, and again at SIGHUP.

This module knows no connection. What is wrong with a file is told in its own words: OpenSSL's say
neither which file it is nor what to do.
"""

import ssl
from pathlib import Path

from kvstream.errors import InvalidArgument
from kvstream.server.options import ServerOptions

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
