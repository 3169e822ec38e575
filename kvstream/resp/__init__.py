"""RESP2 and RESP3, requests and replies, sans-IO.

``twins`` is the compiled code of the wire protocol, ``waits`` that of waiting for a reply; None if
they are not installed or not wanted.
"""

from typing import TYPE_CHECKING

from kvstream.layout import import_compiled
from kvstream.types.machine import usable_cores

if TYPE_CHECKING:
    from kvstream.resp import _waits as waits
    from kvstream.resp import _wire as twins
else:
    twins = import_compiled("kvstream.resp._wire")
    waits = import_compiled("kvstream.resp._waits")


def may_poll() -> bool:
    """Return whether a thread may poll a socket: on one processor the other side could not run."""
    return usable_cores() > 1


__all__ = ["may_poll", "twins", "waits"]
