"""Redis commands without sockets: arguments in, replies out."""
