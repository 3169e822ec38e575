"""A process that has a shared store open until its standard input ends."""

import sys

import kvstream

if __name__ == "__main__":
    with kvstream.open(sys.argv[1], shared=True, durability="no") as store:
        store.size()
        print("open", flush=True)
        sys.stdin.read()
