"""Actions on streams: trim, delete entries, delete a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstream.console.actions.plan import AUDIT, Plan, ids_of, name_in, words
from kvstream.errors import InvalidArgument
from kvstream.types.formatting import number, plural, printable

if TYPE_CHECKING:
    from kvstream.console.view import View


def trim(view: View) -> Plan:
    """Plan to remove the oldest entries: all but ``maxlen``, or those before ``minid``."""
    name = _of_a_program(name_in(view, "stream"))
    stream, maxlen, minid = view.store.stream(name), view.asked("maxlen"), view.asked("minid")
    if bool(maxlen) == bool(minid):
        raise InvalidArgument("say how many entries stay, or the ID or time of the first that does")
    if maxlen and not maxlen.isdecimal():
        raise InvalidArgument(f"a number of entries, not {maxlen!r}")
    length = len(stream)
    count = max(0, length - int(maxlen)) if maxlen else length - stream.count(minid)
    option = f"--maxlen {maxlen}" if maxlen else f"--minid {view.word(minid.encode())}"
    return Plan(
        action="trim",
        title=f"Trim {printable(name)}",
        text=f"This removes the oldest {plural(count, 'entry')} of {number(length)}, also those "
        "that groups have not read.",
        target=name,
        command=words("trim", name, option),
        run=lambda _: stream.trim(maxlen=int(maxlen)) if maxlen else stream.trim(minid=minid),
        back=view.url("streams", name),
        count=count,
        typed=name,
        facts={"maxlen": maxlen, "minid": minid},
    )


def delete_entries(view: View) -> Plan:
    """Plan to delete entries for good."""
    name = _of_a_program(name_in(view, "stream"))
    stream, chosen = view.store.stream(name), ids_of(view)
    found = [each for each in chosen[:40] if stream.get(each) is not None]
    return Plan(
        action="delete-entries",
        title=f"Delete entries of {printable(name)}",
        text=f"This deletes {plural(len(found), 'entry')} for good.",
        target=name,
        command=words("del", name, *found[:3]),
        run=lambda _: stream.delete(*found),
        back=view.url("streams", name, "entries"),
        count=len(found),
        typed=name,
        facts={"ids": [str(each) for each in found[:20]]},
    )


def delete_stream(view: View) -> Plan:
    """Plan to delete a stream with its groups."""
    name = _of_a_program(name_in(view, "stream"))
    info = view.store.stream(name).info()
    return Plan(
        action="delete-stream",
        title=f"Delete the stream {printable(name)}",
        text=f"This deletes {plural(info.length, 'entry')} and {plural(info.groups, 'group')} for "
        "good.",
        target=name,
        command=words("rm", name),
        run=lambda _: view.store.delete(name),
        back=view.url("streams"),
        typed=name,
        facts={"length": info.length, "groups": info.groups},
    )


def _of_a_program(name: bytes) -> bytes:
    """Refuse to touch the audit: what was done stays known."""
    if name == AUDIT:
        raise InvalidArgument("the audit of the console is not changed by the console")
    return name
