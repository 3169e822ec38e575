"""A disk that fails on command: the C library in faultshim.c, and how a test steers it."""
