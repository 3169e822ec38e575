"""Actions on streams: trim, delete entries, delete a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstream.console.actions.plan import Plan, ids_of, name_in, still_there
from kvstream.console.values import whole
from kvstream.errors import InvalidArgument
from kvstream.types.formatting import number, plural, printable

if TYPE_CHECKING:
    from kvstream.console.view import View


def trim(view: View) -> Plan:
    """Plan to remove the oldest entries: all but ``maxlen``, or those before ``minid``."""
    name = name_in(view, "stream")
    stream, maxlen, minid = view.store.stream(name), view.asked("maxlen"), view.asked("minid")
    if bool(maxlen) == bool(minid):
        raise InvalidArgument("say how many entries stay, or the ID or time of the first that does")
    kept = whole(maxlen)
    if maxlen and kept is None:
        raise InvalidArgument(f"a number of entries, not {maxlen!r}")
    length = len(stream)
    count = length - stream.count(minid) if kept is None else max(0, length - kept)
    option = ("--maxlen", maxlen.encode()) if maxlen else ("--minid", minid.encode())
    return Plan(
        action="trim",
        title=f"Trim {printable(name)}",
        text=f"This removes the oldest {plural(count, 'entry')} of {number(length)}, also those "
        "that groups have not read.",
        target=name,
        command=view.command("trim", name, option),
        run=lambda _: stream.trim(minid=minid) if kept is None else stream.trim(maxlen=kept),
        back=view.url("streams", name),
        count=count,
        typed=name,
        facts={"maxlen": maxlen, "minid": minid},
    )


def delete_entries(view: View) -> Plan:
    """Plan to delete entries for good."""
    name = name_in(view, "stream")
    stream = view.store.stream(name)
    found = still_there(stream, ids_of(view))
    return Plan(
        action="delete-entries",
        title=f"Delete entries of {printable(name)}",
        text=f"This deletes {plural(len(found), 'entry')} for good.",
        target=name,
        command=view.command("del", name, *found),
        run=lambda _: stream.delete(*found),
        back=view.url("streams", name, "entries"),
        count=len(found),
        typed=name,
        facts={"ids": [str(each) for each in found[:20]]},
    )


def delete_stream(view: View) -> Plan:
    """Plan to delete a stream with its groups."""
    name = name_in(view, "stream")
    info = view.store.stream(name).info()
    return Plan(
        action="delete-stream",
        title=f"Delete the stream {printable(name)}",
        text=f"This deletes {plural(info.length, 'entry')} and {plural(info.groups, 'group')} for "
        "good.",
        target=name,
        command=view.command("rm", name),
        run=lambda _: view.store.delete(name),
        back=view.url("streams"),
        typed=name,
        facts={"length": info.length, "groups": info.groups},
    )
