"""RESP2 and RESP3 without sockets: bytes in, requests out; reply values in, bytes out."""

from typing import TYPE_CHECKING

from kvstream.layout.compiled import compiled

if TYPE_CHECKING:
    from kvstream.resp import _wire as twins
else:
    twins = compiled("kvstream.resp._wire")

__all__ = ["twins"]
