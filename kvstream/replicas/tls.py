"""The TLS context of a replica's link."""

import ssl
from pathlib import Path


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
