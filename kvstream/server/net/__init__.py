"""Sockets, TLS and timers around the runtime. They move bytes and know no command."""
