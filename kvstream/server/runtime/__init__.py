"""The requests of many clients, run in turns of one commit each. No sockets."""
