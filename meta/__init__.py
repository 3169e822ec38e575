"""Metadata: streams, nodes, groups, consumers and pending entries, as rows and as objects.

Everything here reads through a transaction and writes into its batch; nothing commits. ``plain`` is
the compiled code of the plain XADD, XREADGROUP, XACK and XDEL; None if it is not installed or not
wanted. ``plain_strings`` is that of new strings.
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
