"""RESP2 and RESP3, requests and replies, sans-IO.

``twins`` is the compiled code of the wire protocol; None if it is not installed or not wanted.
"""

from typing import TYPE_CHECKING

from kvstream.layout.compiled import compiled

if TYPE_CHECKING:
    from kvstream.resp import _wire as twins
else:
    twins = compiled("kvstream.resp._wire")

__all__ = ["twins"]
