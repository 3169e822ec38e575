"""redis-py on a store of this process: its connections lead to the table of commands, no socket."""
