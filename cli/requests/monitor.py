"""``monitor``: show the requests of a server's clients as they come, by MONITOR.

The clients of a directory that processes share are these processes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import click

from kvstream.cli.json_values import jsonable
from kvstream.cli.output import Output, summary_options
from kvstream.cli.parameters import Count, Name, example
from kvstream.cli.session import Session
from kvstream.cli.tables import printable, shorten, time_of
from kvstream.types.glob import matcher

_LINE = re.compile(rb"(\d+)\.(\d{3})\d* \[(\d+) (.*?)\] (\".*)", re.DOTALL)
"""``1700000000.123456 [0 127.0.0.1:5000] "xlen" "s"``"""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a client."""

    time_ms: int
    db: int
    client: bytes
    """The address; ``lua`` for a script of Redis."""
    command: list[bytes]


def requests_of(lines: Iterator[bytes]) -> Iterator[Request]:
    """Yield the requests that lines of MONITOR show."""
    from kvstream.resp.requests import split_words  # not for a help text

    for line in lines:
        match = _LINE.fullmatch(line)
        if match is not None and (words := split_words(match[5])):
            yield Request(int(match[1] + match[2]), int(match[3]), match[4], words)


@click.command(
    short_help="Show the requests of a server's clients as they come.",
    epilog=example(
        "kvstream monitor --url redis://localhost:6390",
        "kvstream monitor --url redis://localhost:6390 --command 'x*' --json",
        "kvstream monitor --store data",
    ),
)
@click.option(
    "--command",
    "commands",
    type=Name(),
    multiple=True,
    metavar="PATTERN",
    help="Only commands whose names match, such as xadd or 'x*'. Repeatable.",
)
@click.option(
    "--client", type=Name(), metavar="PATTERN", help="Only clients whose address matches."
)
@click.option("--count", "-n", type=Count(1), metavar="N", help="Stop after N requests.")
@summary_options
def monitor(
    session: Session,
    out: Output,
    /,
    commands: tuple[bytes, ...],
    client: bytes | None,
    count: int | None,
) -> None:
    """Show the requests of a server's clients as they come, until Ctrl-C.

    A line has the time, the database, the client's address, and the request with its values;
    servers hide passwords. The server needs more time for each request meanwhile. The name of the
    command is matched without regard to case.

    With --store this shows the requests of the processes that share the directory (shared=True,
    `kvstream work`): those that the owner gets from the others, and the transactions of all. Calls
    of the owner itself are no requests. If the owner ends, the next one is watched.
    """
    named = [matcher(pattern, ignore_case=True) for pattern in commands]
    from_client = matcher(client or b"*")
    shown = (
        request
        for request in requests_of(session.monitor())
        if from_client(request.client)
        and (not named or any(matches(request.command[0]) for matches in named))
    )
    for request in islice(shown, count):
        if out.for_programs:
            out.object(**jsonable(request))
        else:
            click.echo(_text(request, out.max_width))


def _text(request: Request, width: int | None) -> str:
    name, *arguments = request.command
    words = [
        shorten(text if text and " " not in text else f'"{text}"', width)
        for text in map(printable, arguments)
    ]
    line = " ".join([printable(name).upper(), *words])
    return f"{time_of(request.time_ms)}  {request.db}  {printable(request.client)}  {line}"
