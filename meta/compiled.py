"""The compiled code of metadata.

``plain`` is that of the plain XADD, XREADGROUP, XACK and XDEL, ``plain_strings`` that of new
strings; None if they are not installed or not wanted. The package itself does not import them: a
help text of the command line takes names from it.
"""

from typing import TYPE_CHECKING

from kvstream.layout import import_compiled

if TYPE_CHECKING:
    from kvstream.meta import _plain as plain
    from kvstream.meta import _strings as plain_strings
else:
    plain_strings = import_compiled("kvstream.meta._strings")
    plain = import_compiled("kvstream.meta._plain")

__all__ = ["plain", "plain_strings"]
