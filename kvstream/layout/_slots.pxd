"""Attributes of ``__slots__``, read and written at their place in an object.

Compiled code looks up each attribute of a Python object by its name, which takes 25 ns. Python's own
loop notes the place of a slot beside the instruction, and so does this module: ``find_slots`` fills
a struct with the places of a class once. The struct's first member is ``type``, the address of the
class. An object must be checked with ``is_of`` before its slots are used.
"""

from cpython.object cimport PyObject, Py_TYPE, PyTypeObject


cdef extern from *:
    """
    #include <structmember.h>

    /* Return the place of a slot of a class, -1 if it has none of this name. */
    static Py_ssize_t kvstream_place(PyTypeObject *type, PyObject *name) {
        PyMemberDef *member;
        PyObject *found = PyObject_GetAttr((PyObject *)type, name);
        Py_ssize_t place = -1;
        if (found == NULL) { PyErr_Clear(); return -1; }
        if (Py_IS_TYPE(found, &PyMemberDescr_Type)) {
            member = ((PyMemberDescrObject *)found)->d_member;
            if (member->type == T_OBJECT_EX && !(member->flags & READONLY)) place = member->offset;
        }
        Py_DECREF(found);
        return place;
    }

    static inline PyObject *kvstream_get(PyObject *of, Py_ssize_t place) {
        PyObject *value = *(PyObject **)((char *)of + place);
        if (value == NULL) PyErr_SetString(PyExc_AttributeError, "a slot is empty");
        else Py_INCREF(value);
        return value;
    }

    static inline void kvstream_put(PyObject *of, Py_ssize_t place, PyObject *value) {
        PyObject **slot = (PyObject **)((char *)of + place), *former = *slot;
        Py_INCREF(value);
        *slot = value;
        Py_XDECREF(former);
    }

    /* Return an int as the nearest number that a Py_ssize_t can have. */
    static inline Py_ssize_t kvstream_bounded(PyObject *number) {
        int overflow;
        long long found = PyLong_AsLongLongAndOverflow(number, &overflow);
        return overflow > 0 ? PY_SSIZE_T_MAX : overflow < 0 ? PY_SSIZE_T_MIN : (Py_ssize_t)found;
    }
    """
    Py_ssize_t bounded "kvstream_bounded" (object number) except? -1
    Py_ssize_t kvstream_place(PyTypeObject *type, object name)
    object get "kvstream_get" (object of, Py_ssize_t place)
    void put "kvstream_put" (object of, Py_ssize_t place, object value)


cdef inline dict find_slots(type of, dict names):
    """Return the places of the named slots; raise TypeError if the class has not all of them."""
    cdef dict found = {"type": <Py_ssize_t><void *>of}
    for name in names:
        if name != "type":
            found[name] = kvstream_place(<PyTypeObject *>of, name)
            if found[name] < 0:
                raise TypeError(f"{of.__name__} has no slot {name}")
    return found


cdef inline bint is_of(object each, Py_ssize_t of) noexcept:
    """Return whether an object is of exactly the class at an address."""
    return <Py_ssize_t>Py_TYPE(each) == of


cdef inline object part(object of, Py_ssize_t place, Py_ssize_t kind):
    """Return what a slot has; raise TypeError if it is not of the class at an address."""
    value = get(of, place)
    if not is_of(value, kind):
        raise TypeError(f"a slot holds {type(value).__name__}")
    return value
