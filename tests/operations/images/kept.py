"""Helpers for images: read completely, compared, and loaded."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvstream import Store
from kvstream.types.images import NodeImage, StreamState


@dataclass
class Kept:
    """An image that was read to its end, and can be read again."""

    found: list[NodeImage]
    rest: StreamState
    expire_at_ms: int = 0

    def nodes(self) -> Iterator[NodeImage]:
        return iter(self.found)

    def state(self) -> StreamState:
        return self.rest


def take_image(store: Store, key: str) -> Kept:
    """Return the complete image of a stream."""
    image = store.image(key)
    assert image is not None
    with image:
        return Kept(list(image.nodes()), image.state(), image.expire_at_ms)


def copy_image(store: Store, key: str, target: str | None = None) -> list[str]:
    """Load a stream's image under another name, or over the stream; return the corrections."""
    image = take_image(store, key)
    loaded = store.load(target or key, image, replace=True, expire_at_ms=image.expire_at_ms)
    return loaded.corrections
