"""Where a command of the server runs: at the server whose client has sent it."""

from kvstream.server.client import Client
from kvstream.server.executor import Executor


def server_of(client: Client) -> Executor:
    """Return the server that a client has come to."""
    assert isinstance(client.server, Executor)
    return client.server
