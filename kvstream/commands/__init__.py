"""Redis commands as values: arguments in, replies out, no sockets."""
