"""Lua scripts: the sandbox that runs them, and the scripts that a server keeps."""
