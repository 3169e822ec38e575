"""Small strings that are stored like large ones: their rows are those of megabytes."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def small_pieces(whole: int = 4) -> Iterator[None]:
    """Store strings of more bytes than ``whole`` in pieces of eight; read two at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvstream.meta.strings.WHOLE_BYTES_MAX", whole)
        patch.setattr("kvstream.meta.strings.PIECE_BYTES", 8)
        patch.setattr("kvstream.meta.strings.PAGE_BYTES", 16)
        patch.setattr("kvstream.meta.strings.RANGE_PIECES", 4)
        yield
