"""The command line: ``kvstream --store DIR COMMAND``."""

from kvstream.cli.app import main

__all__ = ["main"]
