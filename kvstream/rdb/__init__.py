"""Redis's own bytes of a stream, in RDB files and DUMP payloads, to and from images of it.

Knows no store, no file and no socket: bytes come from an object or a function, and go out in
pieces. What a stream is apart from its bytes is in kvstream/types/images.py.
"""
