"""redis-py on a store in this process: its connections call the command table, without a socket."""
