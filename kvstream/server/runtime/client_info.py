"""A client as CLIENT LIST and ACL LOG show it: one line of what the server knows of it."""

from kvstream.commands.args import text
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.tracking import Tracking

_LINE = (
    "id=%d addr=%s laddr=%s fd=%d name=%s age=%d idle=%d flags=%s db=%d sub=0 psub=0 ssub=0 "
    "multi=%d watch=%d qbuf=%d qbuf-free=0 argv-mem=0 multi-mem=%d rbs=0 rbp=0 obl=0 oll=%d "
    "omem=%d tot-mem=%d events=%s cmd=%s user=%s redir=%d resp=%d lib-name=%s lib-ver=%s "
    "io-thread=0 tot-net-in=%d tot-net-out=%d tot-cmds=%d"
)


def listed(client: Client, tracking: Tracking | None, asking: int = 0) -> str:
    """Return a line of CLIENT LIST; ``asking``: the bytes of the request for it, if it is its."""
    now = client.server.clock()
    queued = 0 if client.queue is None else client.queue.size
    pending, held = client.pending_output(), client.reader.buffered + client.unread.size + asking
    return _LINE % (
        *(client.id, client.address, client.local_address, client.descriptor, text(client.name)),
        *(now - client.created, now - client.last_used, _flags(client, tracking), client.db),
        -1 if client.queue is None else len(client.queue.commands),
        *(len(client.watched), held, queued, pending > 0, pending, held + queued + pending),
        *("rw" if pending else "r", client.last_command or "NULL", text(client.user.name)),
        -1 if tracking is None else tracking.redirect,
        *(client.protocol, text(client.lib_name), text(client.lib_version)),
        *(client.bytes_in, client.bytes_out, client.commands_run),
    )


def _flags(client: Client, tracking: Tracking | None) -> str:
    held = (
        ("O", client.monitors),
        ("b", client.block is not None),
        ("x", client.queue is not None),
        ("c", client.closing),
        ("e", client.no_evict),
        ("T", client.no_touch),
        ("t", tracking is not None),
        ("R", tracking is not None and tracking.broken),
        ("B", tracking is not None and b"BCAST" in tracking.modes),
    )
    return "".join(letter for letter, holds in held if holds) or "N"
