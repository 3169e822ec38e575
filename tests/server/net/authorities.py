"""Certificates made for a test: of servers, of clients, good and bad."""

import datetime
from pathlib import Path
from typing import NamedTuple

import trustme

PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


class Identity(NamedTuple):
    """A certificate and its key, in files."""

    certificate: str
    key: str


class Authority:
    """A certificate authority, and the files that it writes."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self._ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.certificate = str(directory / "ca.pem")
        self._ca.cert_pem.write_to_path(self.certificate)

    def certify(self, name: str, expired: bool = False) -> Identity:
        """Return a certificate of a host or a client."""
        made = self._ca.issue_cert(
            name, not_after=PAST if expired else None, key_type=trustme.KeyType.ECDSA
        )
        identity = Identity(
            str(self._directory / f"{name}.crt"), str(self._directory / f"{name}.key")
        )
        made.private_key_pem.write_to_path(identity.key)
        for blob in made.cert_chain_pems:
            blob.write_to_path(identity.certificate, append=True)
        return identity
