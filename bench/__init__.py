"""kvstream beside redis-server: `make bench`."""
