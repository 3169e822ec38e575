# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Waits for the replies of a server: see ``_waits.pxd``."""

from kvstream.resp._sockets cimport (
    kvstream_await_readable,
    kvstream_now_ns,
    kvstream_poll_readable,
)
from kvstream.resp._waits cimport POLL_NS, SHORT_NS, ShortWaits
from libc.stdint cimport int64_t


cdef class ShortWaits:
    def __cinit__(self, bint allowed):
        """``allowed``: the machine has a processor for the other side."""
        self.allowed = allowed


# One thread of a process polls for replies: each takes a processor. A child that is forked
# meanwhile does not poll.
cdef bint polling = False


cdef class ReplyWait:
    """Waits for the first bytes of a reply on one socket."""

    cdef int socket
    cdef ShortWaits waits

    def __cinit__(self, int socket, bint polls):
        self.socket = socket
        self.waits = ShortWaits(polls)

    def wait(self):
        """Return when the socket is readable, or after about a millisecond."""
        global polling
        cdef int64_t begun
        cdef bint found
        if self.waits.expects_short() and not polling:
            polling = True
            with nogil:
                found = kvstream_poll_readable(self.socket, POLL_NS)
            polling = False
        else:
            begun = kvstream_now_ns()
            with nogil:
                found = kvstream_await_readable(self.socket, 1)
            found = found and kvstream_now_ns() - begun < SHORT_NS
        self.waits.note(found)
