"""Redis's own format of a stream, in RDB files and DUMP payloads, read and written as an image.

Knows no store and no socket: bytes come from an object or a function, and go out in pieces. The
image of a stream is in kvstream/types/images.py.
"""

from typing import TYPE_CHECKING

from kvstream.layout import import_compiled

if TYPE_CHECKING:
    from kvstream.rdb import _compiled as twins
else:
    twins = import_compiled("kvstream.rdb._compiled")

__all__ = ["twins"]
