# cython: language_level=3
"""The compiled twin of ``contextlib.contextmanager``, which contexts.py explains."""


cdef class Context:
    """A ``with`` block around the ``yield`` of a generator."""

    cdef object _generator

    def __init__(self, generator):
        self._generator = generator

    def __enter__(self):
        try:
            return next(self._generator)
        except StopIteration:
            raise RuntimeError("generator didn't yield") from None

    def __exit__(self, kind, error, traceback):
        if kind is None:
            try:
                next(self._generator)
            except StopIteration:
                return False
            self._generator.close()
            raise RuntimeError("generator didn't stop")
        if error is None:
            error = kind()
        try:
            self._generator.throw(error)
        except StopIteration as stop:
            return stop is not error  # one that the block itself has raised goes on
        except RuntimeError as raised:
            # Python makes a RuntimeError of a StopIteration that leaves a generator.
            if raised is error or (
                isinstance(error, StopIteration) and raised.__cause__ is error
            ):
                error.__traceback__ = traceback
                return False
            raise
        except BaseException as raised:
            if raised is not error:
                raise
            error.__traceback__ = traceback
            return False
        self._generator.close()
        raise RuntimeError("generator didn't stop after throw()")
