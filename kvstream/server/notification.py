"""Telling systemd how the server is, by the protocol of ``sd_notify``.

Where nobody has asked to be told (no NOTIFY_SOCKET in the environment) nothing happens.
"""

import os
import socket
from contextlib import suppress

READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(*states: str) -> None:
    """Tell how the server is; whoever asked may be gone by now."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # of no file: Linux's abstract names
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as messenger, suppress(OSError):
        messenger.sendto("\n".join(states).encode(), address)
