"""The keys of one database, its clock and its configuration."""

from collections.abc import Callable

from tests.model.arguments import fail, text
from tests.model.stream import Group, Stream

NEEDS_KEY = (
    "The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use "
    "the MKSTREAM option to create an empty stream automatically."
)


class Redis:
    """One database of streams and plain strings.

    ``old=True`` gives the rules of Redis 7.0.15 where they differ, so that a real server of that
    version can bear the others out.
    """

    def __init__(self, now: Callable[[], int], old: bool = False) -> None:
        self.now = now
        self.old = old
        self.keys: dict[bytes, Stream | bytes] = {}
        self.expiries: dict[bytes, int] = {}
        self.config = {
            b"stream-node-max-entries": 100,
            b"stream-node-max-bytes": 4096,
            b"stream-idmp-duration": 100,
            b"stream-idmp-maxsize": 100,
        }

    def drop(self, key: bytes) -> bool:
        """Delete a key and its expiry; return whether it existed."""
        self.expiries.pop(key, None)
        return self.keys.pop(key, None) is not None

    def drop_expired(self) -> None:
        """Delete the keys whose time has come: every command begins so."""
        for key in [key for key, at in self.expiries.items() if at <= self.now()]:
            self.drop(key)

    def stream(self, key: bytes) -> Stream | None:
        found = self.keys.get(key)
        if isinstance(found, bytes):
            raise fail("Operation against a key holding the wrong kind of value", "WRONGTYPE")
        return found

    def existing(self, key: bytes) -> Stream:
        if (found := self.stream(key)) is None:
            raise fail("no such key")
        return found

    def new_stream(self, key: bytes) -> Stream:
        limits = self.config[b"stream-idmp-duration"], self.config[b"stream-idmp-maxsize"]
        self.keys[key] = made = Stream(*limits)
        return made

    def group(self, key: bytes, name: bytes, where: str = "") -> tuple[Stream, Group]:
        """Find a group for a command that reads or claims."""
        found = self.stream(key)
        if found is None or name not in found.groups:
            message = f"No such key '{text(key)}' or consumer group '{text(name)}'{where}"
            raise fail(message, "NOGROUP")
        return found, found.groups[name]

    def find_managed(self, key: bytes) -> Stream:
        """Find the stream of an XGROUP command."""
        if (found := self.stream(key)) is None:
            raise fail(NEEDS_KEY)
        return found

    def group_of(self, s: Stream, key: bytes, name: bytes) -> Group:
        """Find the group of an XGROUP or XINFO command."""
        if name not in s.groups:
            message = f"No such consumer group '{text(name)}' for key name '{text(key)}'"
            raise fail(message, "NOGROUP")
        return s.groups[name]
