"""The server: the command table behind RESP."""
