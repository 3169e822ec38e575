"""How a wait for a socket begins.

A thread that sleeps takes some 50 us to wake up, and then works more slowly, its caches cold. So it
polls first, if the last waits were all short.
"""

cdef enum:
    POLL_NS = 200_000
    SHORT_NS = 250_000  # with the time to wake up
    SHORT_MIN = 8


cdef class ShortWaits:
    """Counts the short waits in a row: they tell whether polling is worth its processor time."""

    cdef int count
    cdef bint allowed

    cdef inline bint expects_short(self):
        return self.allowed and self.count == SHORT_MIN

    cdef inline void note(self, bint short):
        self.count = min(self.count + 1, SHORT_MIN) if short else 0
