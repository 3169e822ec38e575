"""Celery on a kvstream store: the broker of ``kvstream.adapters.kombu``, and a result backend.

::

    import kvstream.adapters.celery  # registers the names

    app = Celery("app", broker="kvstream:///var/lib/app", backend="kvstream:///var/lib/app")

``kvstream+redis://localhost:6379/0`` is a server. Results are strings that expire after
``result_expires``. The options of ``result_backend_transport_options`` are those of the transport.
"""

from collections.abc import Iterable
from typing import Any

from celery.app.backends import BACKEND_ALIASES
from celery.backends.base import KeyValueStoreBackend

import kvstream.adapters.kombu
from kvstream.adapters.places import Strings

BACKEND_ALIASES["kvstream"] = "kvstream.adapters.celery:ResultBackend"


class ResultBackend(KeyValueStoreBackend):
    """The results of tasks, groups and chords in a store."""

    implements_incr = True
    supports_native_join = True
    supports_autoexpire = True

    def __init__(self, app: Any = None, url: str | None = None, **kwargs: Any) -> None:
        super().__init__(app=app, url=url, **kwargs)
        self.url = url
        options = self.app.conf.get("result_backend_transport_options") or {}
        self._place = kvstream.adapters.kombu.place_of(url or "", options)
        self._results = Strings(self._place, "")

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "url": self.url})

    def as_uri(self, include_password: bool = False) -> str:
        return self.url or ""

    def get(self, key: str | bytes) -> bytes | None:
        return self._results.get(key)

    def mget(self, keys: Iterable[str | bytes]) -> list[bytes | None]:
        return [self._results.get(key) for key in keys]

    def set(self, key: str | bytes, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else value
        self._results.put(key, data, self.expires)

    def delete(self, key: str | bytes) -> None:
        self._results.delete(key)

    def incr(self, key: str | bytes) -> int:
        return self._results.add(key, 1)

    def expire(self, key: str | bytes, value: float) -> bool:
        return self._place.store.expire(key, value)
