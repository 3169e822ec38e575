"""Ports to listen at, and what is said where one cannot be had."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from kvstream.errors import KVStreamError


class CannotListen(KVStreamError):
    """Another program has the port, or the machine has no such address."""


@contextmanager
def listening(host: str, port: int) -> Iterator[None]:
    """Begin to listen within; CannotListen, with the place and the reason, where that fails."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno is not None and not isinstance(error, socket.gaierror):
            reason = os.strerror(error.errno)  # loops tell of it at length
        raise CannotListen(f"cannot listen at {host}:{port}: {reason.lower()}") from None
