"""A primary that comes back from a power loss: its replicas may have what it has lost.

It is *suspect*: it answers replicas alone until each that had the log lately has asked for it at a
position that is not ahead, or until ``replica-recovery-timeout`` is over. If one is ahead it stays
closed, and Sentinel promotes that one: PING is an error. Meanwhile it asks them whether one is a
primary by now. If so, with all that is here and more, this server follows it.

::

    REPLICAS := JSON, in the directory of a store that has had replicas
      boot      the boot of the machine in which its server ran last
      closed    whether that server stopped in good order: all was durable, and the replicas had it
      known     [[host, port]...], the replicas that had the log at most ``replica-validity`` ago
"""

import json
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kvstream.engine.following import Source
from kvstream.errors import Corruption, KVStreamError
from kvstream.layout.history import History, Place
from kvstream.logs import Throttle
from kvstream.replicas.connection import LinkOptions, ask_for_primary
from kvstream.storage import files

FILE_NAME = "REPLICAS"
ASK_S = 1.0
"""How often, and for how long, each known replica is asked whether it is a primary."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)


@cache
def _boot() -> str:
    """Return the ID of this boot of the machine; empty if it has none."""
    with suppress(OSError):
        return _BOOT.read_text().strip()
    return ""


class Known(NamedTuple):
    """What the directory of a store notes of its replicas."""

    boot: str
    closed: bool
    replicas: frozenset[Source]

    @classmethod
    def read(cls, directory: Path) -> "Known":
        """Return the notes of a directory; empty ones if there are none; Corruption if damaged."""
        try:
            found: dict[str, Any] = json.loads(files.read(directory / FILE_NAME))
            known = frozenset(Source(str(host), int(port)) for host, port in found["known"])
            return cls(str(found["boot"]), bool(found["closed"]), known)
        except FileNotFoundError:
            return cls("", True, frozenset())
        except (ValueError, KeyError, TypeError) as error:
            raise Corruption(f"the file {FILE_NAME} of the store is damaged: {error}") from None

    @property
    def has_lost_power(self) -> bool:
        """Whether the machine went down under a server that had replicas."""
        return bool(self.replicas) and not self.closed and self.boot != _boot()


class Notes:
    """Keeps the notes of one store."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._failures = directory, Throttle()
        self.known = Known.read(directory)

    def keep(self, replicas: frozenset[Source], closed: bool = False) -> None:
        """Note durably which replicas are known, if that has changed.

        If the disk does not take it, that is logged, and the next call tries again.
        """
        known = Known(_boot(), closed, replicas)
        if known == self.known or not (replicas or self.known.replicas):
            return  # nothing has changed, or it has never had any
        named = {"boot": known.boot, "closed": closed, "known": sorted(replicas)}
        try:
            files.write(self._directory / FILE_NAME, json.dumps(named).encode())
        except OSError as error:
            text = "it is not noted which replicas have the log: %s"
            self._failures.log(_log, logging.WARNING, text, error)
        else:
            self.known = known


def is_ahead(place: Place, history: History, lsn: int) -> bool:
    """Return whether a replica has rows that a primary at ``lsn`` has not, or a later history."""
    for epoch in (*history.former, Place(history.epoch, history.branch, lsn)):
        if place.branch == epoch.branch:
            return place.lsn > epoch.lsn
    return place.epoch >= history.epoch


class Recovery:
    """What a suspect primary has heard so far."""

    def __init__(self, known: frozenset[Source], since: float) -> None:
        self._silent = set(known)
        self.ahead: Source | None = None
        """A replica that has more."""
        self._since = since

    def hear(self, replica: Source, ahead: bool) -> None:
        """Note the position of a replica."""
        if ahead:
            _log.warning("the replica %s:%d has rows that this server has lost", *replica)
            self.ahead = replica
        self._silent.discard(replica)

    def is_over(self, now: float, timeout_s: float) -> bool:
        """Return whether it is known, or assumed after some time, that nobody has more."""
        return self.ahead is None and (not self._silent or now - self._since >= timeout_s)


class Asking(threading.Thread):
    """Asks known replicas whether one of them is a primary, until it is stopped."""

    def __init__(
        self,
        known: frozenset[Source],
        options: Callable[[], LinkOptions],
        found: Callable[[Source, int], None],
    ) -> None:
        """``found`` is called in this thread with a primary and its position."""
        super().__init__(name="kvstream-recovery", daemon=True)
        self._known, self._options, self._found = sorted(known), options, found
        self._stops = threading.Event()

    def stop(self) -> None:
        """End soon."""
        self._stops.set()

    def run(self) -> None:
        """Ask each in turn."""
        while not self._stops.wait(ASK_S):
            for source in self._known:
                with suppress(OSError, KVStreamError):
                    lsn = ask_for_primary(source, replace(self._options(), timeout_s=ASK_S))
                    if lsn is not None and not self._stops.is_set():
                        self._found(source, lsn)
