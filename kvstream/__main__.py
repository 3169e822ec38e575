"""``python -m kvstream``: the command line."""

from kvstream.cli import main

if __name__ == "__main__":
    main(prog_name="kvstream")
