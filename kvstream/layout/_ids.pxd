"""IDs: tuples of two numbers, and 16 bytes."""

from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.stdint cimport uint64_t


cdef extern from "Python.h":
    void PyObject_GC_UnTrack(PyObject *)


cdef extern from *:
    """
    static inline PyObject *kvstream_alloc(PyTypeObject *type, Py_ssize_t size) {
        PyObject *made = type->tp_alloc(type, size);
    #if PY_VERSION_HEX >= 0x030E0000
        /* From 3.14 on a tuple keeps its hash; zeroed memory would say that it is 0. */
        if (made != NULL) ((PyTupleObject *)made)->ob_hash = -1;
    #endif
        return made;
    }
    """
    object kvstream_alloc(PyTypeObject *type, Py_ssize_t size)


cdef inline object make_id(type stream_id, object ms, uint64_t seq):
    """Make an ID that the cycle collector does not track: it has two numbers."""
    cdef object number = seq
    eid = kvstream_alloc(<PyTypeObject *>stream_id, 2)
    PyObject_GC_UnTrack(<PyObject *>eid)
    Py_INCREF(ms)
    PyTuple_SET_ITEM(eid, 0, ms)
    Py_INCREF(number)
    PyTuple_SET_ITEM(eid, 1, number)
    return eid


cdef inline void put_big_endian(unsigned char *at, uint64_t number) noexcept nogil:
    cdef int i
    for i in range(7, -1, -1):
        at[i] = number & 0xFF
        number >>= 8
