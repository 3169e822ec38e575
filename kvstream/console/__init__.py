"""The web console: an ASGI app that shows a store, its queues, jobs and streams.

::

    from starlette.applications import Starlette
    from starlette.routing import Mount

    import kvstream


    def staff(request):
        return kvstream.console.User("ann", "operator") if request.cookies.get("staff") else None


    site = Starlette(routes=[Mount("/ops", kvstream.console.app("data", auth=staff))])

Nobody is let in by default: ``auth`` has none. It needs starlette and jinja2:
``pip install 'kvstream-db[console]'``. ``kvstream console`` serves it alone, on 127.0.0.1.
"""

from kvstream.console.access import Role, User
from kvstream.console.asgi import Console, app

__all__ = ["Console", "Role", "User", "app"]


def __dir__() -> list[str]:
    return __all__
