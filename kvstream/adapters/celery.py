"""Celery on a kvstream store: the broker of ``kvstream.adapters.kombu``, and a result backend.

::

    import kvstream.adapters.celery  # registers the names

    app = Celery("app", broker="kvstream:///var/lib/app", backend="kvstream:///var/lib/app")

``kvstream+redis://localhost:6379/0`` is a server. Results are strings that expire after
``result_expires``. The options of ``result_backend_transport_options`` are those of the transport.
"""

import sys
from collections.abc import Callable, Iterable
from time import sleep
from typing import Any

from celery.app.backends import BACKEND_ALIASES
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import TimeoutError
from celery.states import READY_STATES

import kvstream.adapters.kombu
from kvstream.adapters.places import Strings
from kvstream.types.clock import monotonic
from kvstream.types.urls import show_url

__all__ = ["ResultBackend"]


def __dir__() -> list[str]:
    return __all__


POLL_S, POLL_GROWTH = 0.005, 1.5
"""The first pause between two looks for a result, and how much longer each following one is."""
_SIZE, _DONE = ".size", ".done"
"""End the keys of a chord's size, and of a chord whose body was sent."""
BACKEND_ALIASES["kvstream"] = "kvstream.adapters.celery:ResultBackend"


class ResultBackend(KeyValueStoreBackend):
    """The results of tasks, groups and chords in a store."""

    implements_incr = True
    supports_autoexpire = True

    def __init__(self, app: Any = None, url: str | None = None, **kwargs: Any) -> None:
        super().__init__(app=app, url=url, **kwargs)
        self.url = url
        options = self.app.conf.get("result_backend_transport_options") or {}
        self._place = kvstream.adapters.kombu.place_of(url or "", options)
        self._results = Strings(self._place, "")
        self._part: Any = None
        """The request of the part of a chord that is being noted."""

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "url": self.url})

    def as_uri(self, include_password: bool = False) -> str:
        url = self.url or ""
        return url if include_password or not url else show_url(url)

    def get(self, key: str | bytes) -> bytes | None:
        return self._results.get(key)

    def mget(self, keys: Iterable[str | bytes]) -> list[bytes | None]:
        return [self._results.get(key) for key in keys]

    def set(self, key: str | bytes, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else value
        self._results.put(key, data, self.expires)

    def delete(self, key: str | bytes) -> None:
        self._results.delete(key)

    def expire(self, key: str | bytes, value: float) -> bool:
        return self._place.store.expire(key, value)

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_interval: Callable[[], object] | None = None,
    ) -> Any:
        """Return the result of a task; look for it often at first, and then each ``interval``.

        ``on_interval`` raises the error of an earlier task of a chain, which explains more than
        the error of a task that could not run. That may be stored a little later, so this is not
        called between the first looks.
        """
        self._ensure_not_eager()
        deadline = None if timeout is None else monotonic() + timeout
        pause = POLL_S
        while True:
            meta = self.get_task_meta(task_id)
            is_ready = meta["status"] in READY_STATES
            if on_interval is not None and (is_ready or pause >= interval):
                on_interval()
            if is_ready:
                return meta
            rest_s = interval if deadline is None else deadline - monotonic()
            if rest_s <= 0:
                raise TimeoutError("The operation timed out.")
            sleep(min(pause, interval, rest_s))
            pause *= POLL_GROWTH

    # --- chords -------------------------------------------------------------------------------
    #
    # A part that is delivered twice, because its worker was killed, counts once: the key of a chord
    # is a stream with the IDs of the tasks that are done. The body runs once the last part is
    # done; it runs again if the worker of that part is killed before the part is acknowledged.

    def _apply_chord_incr(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        gid = header_result_args[0]  # that of the former run, if the chord runs again
        self.delete(self.get_key_for_chord(gid))
        self.delete(self.get_key_for_group(gid, _DONE))
        super()._apply_chord_incr(header_result_args, body, **kwargs)

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Note how many tasks a chord waits for; a group in it counts with all of its tasks."""
        size = str(chord_size).encode()
        self._results.put(self.get_key_for_group(group_id, _SIZE), size, self.chord_expires)

    def on_chord_part_return(self, request: Any, state: Any, result: Any, **kwargs: Any) -> None:
        """Note that a task of a chord is done, and run the body if it was the last."""
        gid = request.group
        if gid is None or self._results.exists(self.get_key_for_group(gid, _DONE)):
            return
        size = self._results.get(self.get_key_for_group(gid, _SIZE))
        # Without a size some parts are still to be sent.
        request.chord["chord_size"] = sys.maxsize if size is None else int(size)
        self._part = request
        super().on_chord_part_return(request, state, result, **kwargs)
        if not self._results.exists(self.get_key_for_group(gid)):
            self._results.put(self.get_key_for_group(gid, _DONE), b"", self.chord_expires)

    def incr(self, key: str | bytes) -> int:
        """Note the part of a chord; return how many are done, all of them if it was noted before.

        Of parts that are noted at the same time one sees all.
        """
        parts = self._place.store.stream(key)
        own, task = parts.add({b"task": self._part.id}), self._part.id.encode()
        if len(parts) < self._part.chord["chord_size"]:
            return 0
        before = {entry.fields[b"task"] for entry in parts.scan(end=own.previous())}
        if task not in before:
            return len(before) + 1
        return len({entry.fields[b"task"] for entry in parts.scan()})
