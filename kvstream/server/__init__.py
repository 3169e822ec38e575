"""The server: the command table behind RESP.

``twins`` is the compiled code of the way of a request; None if it is not installed or not wanted.
"""

from typing import TYPE_CHECKING

from kvstream.layout import import_compiled

if TYPE_CHECKING:
    from kvstream.server import _compiled as twins
else:
    twins = import_compiled("kvstream.server._compiled")

__all__ = ["twins"]
