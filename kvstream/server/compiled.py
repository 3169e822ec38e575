"""The compiled code of the server.

``twins`` is the compiled code of the way of a request, ``calls`` that of the calls of EXEC and
scripts; None if they are not installed or not wanted. The package itself does not import them, as
in ``kvstream.meta``.
"""

from typing import TYPE_CHECKING

from kvstream.layout import import_compiled

if TYPE_CHECKING:
    from kvstream.server import _calls as calls
    from kvstream.server import _compiled as twins
else:
    calls = import_compiled("kvstream.server._calls")
    twins = import_compiled("kvstream.server._compiled")

__all__ = ["calls", "twins"]
