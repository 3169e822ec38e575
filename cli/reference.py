"""Writes docs/cli.md: ``python -m kvstream.cli.reference > docs/cli.md``.

What the help says is taken from the commands themselves; a test keeps the file current.
"""

from collections.abc import Iterator

import click

from kvstream.cli.app import SECTIONS, main, name_of
from kvstream.cli.exits import MEANINGS
from kvstream.cli.rows import FIELDS_COLUMN, ID_COLUMN

WIDTH = 90

INTRODUCTION = f"""\
# The command line

<!-- Written by `python -m kvstream.cli.reference > docs/cli.md`; do not edit. -->

`kvstream --store DIR COMMAND` works on the store in `DIR`, `kvstream --url URL COMMAND` on one
behind a server. Set `KVSTREAM_STORE` or `KVSTREAM_URL` and the option may be left out, as in the
examples below; an option goes before the environment.

## One process at a time

A store is embedded: one process holds it for writing, or several hold it for looking. A command
that only looks opens the store read-only and changes nothing in it. While another process holds the
store a command waits for `--wait` (1 s), then ends with exit code 3 and names that process.
`tail --follow` and `read --block` look again and again, and let go of the store in between. To look
at what a long-running process writes, have it write a checkpoint and open that; or have a server
(`serve`) hold the store, and name that.

## On a server

`kvstream --url URL COMMAND` runs the same commands on a server, kvstream's or Redis's from 7.0
on, with the same output and exit codes. It needs redis-py: `pip install 'kvstream[server]'`. The
URL is `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]`, `rediss://` the same by TLS, or
`unix:///PATH[?db=DB]`; `/`, `:`, `@`, `%` and `#` in a password are written `%2F`, `%3A`, `%40`,
`%25` and `%23`. Set `KVSTREAM_URL` instead of naming it, above all where it has a password:
others on the machine see arguments. Options of redis-py may follow a `?`, as in
`rediss://host?ssl_ca_certs=ca.pem` or `?socket_timeout=300`: a reply is waited for 60 seconds
otherwise. No message shows the URL.

- Everything that a command does in one commit is one transaction (MULTI) there. `import` watches
  the stream where rows ask for IDs, and plans them anew when somebody else has written to it.
  WATCH sees entries and keys, not what groups deliver: `group reset --drop-pending` and `consumer
  del` take what is pending when they look.
- `tail --follow` and `read --block` wait on the server, and show at once what comes.
- `checkpoint` is BGSAVE, `compact` is BGREWRITEAOF, `stats` shows INFO, and `bench` uses two
  streams `kvstream:bench:...` that it deletes. `check`, `recover` and `serve` work on files: they
  want `--store`. The durability is what the server was started with.
- What a server does not know it refuses itself: `nack` before Redis 8.8, `read --claim` before
  8.4, `--ref-policy` and `ack --delete` before 8.2. A Redis before 7.2 does not tell when a
  consumer was last given anything: `consumer ls` says unknown, `info --full` never (-1).
- The backlog of a group is its lag, where the server knows that; otherwise it is counted, unless
  it is more than 10,000 entries.
- A write whose answer did not come may have been done; nothing is sent twice. Exit code 5 says
  so.

## Output

- Tables are for people. On a terminal names and values longer than `--max-width` are cut, with an
  ellipsis; numbers, IDs and times never are. Where a terminal is too narrow for that, the times of
  IDs are left out, names are cut further, and at last each row becomes a block of lines. Where
  stdout is no terminal nothing is cut, and there is one line a row. Whatever is not printable
  stands escaped, as in `\\xff` or `\\x1b`.
- `--json` is for programs: one JSON object a line, from every command that answers anything.
  Durations in it are milliseconds where the name ends with `_ms`, as are `idle` and `inactive`;
  `ttl` and `idmp_duration` are seconds; sizes are bytes.
- Bytes are JSON strings where they are valid UTF-8, else `{{"base64": "..."}}`. The fields of an
  entry are an object, or a list of `[field, value]` pairs where a name repeats or is not UTF-8.
- Errors are one line on stderr.

## IDs, times, durations, names

An ID is `ms-seq` or `ms`. Where a help text says `ID|TIME`, a date or time (ISO 8601, UTC unless it
says otherwise) or `now-15m` may stand too; `group --start`, `read --after` and the like then begin
with the entries of that time. Durations are `500ms`, `10s`, `15m`, `2h`, `7d`; a bare number is in
seconds. Names and values are the bytes that the shell has passed.

## Files

`export` writes, and `import` reads, without loss:

- **JSON Lines**: `{{"id": "1700000000000-0", "fields": {{"sku": "a1"}}}}`, as `--json` shows
  entries. `import` also takes flat objects, each name a field: numbers as they are spelled, `true`
  and `false`, nested values as JSON text; `null` leaves the field out.
- **CSV**: a column for each field, an empty cell where an entry lacks it. `{ID_COLUMN}` is the ID;
  `{FIELDS_COLUMN}` holds all fields of an entry as JSON where cells cannot hold them exactly.

An import keeps how far it has come in a small stream `kvstream:import:...` of the same database
(`ls --all`), written in the commit that adds the rows. So after a kill at any moment the same
command goes on with the next row: none is lost, none is added twice. Before it does, it compares a
digest of what it has imported; a file that has changed there is refused. The note of a finished
import is kept for 30 days. Groups and counters are not exported: `checkpoint` keeps all.
"""


def reference() -> Iterator[str]:
    """Yield the parts of docs/cli.md."""
    yield INTRODUCTION
    yield "## Exit codes\n\n| code | meaning |\n| ---: | --- |"
    yield from (f"| {int(code)} | {meaning} |" for code, meaning in MEANINGS.items())
    settings = {**main.context_settings, "max_content_width": WIDTH, "terminal_width": WIDTH}
    context = click.Context(main, info_name="kvstream", **settings)
    yield "\n## `kvstream`\n"
    yield _help(main, context)
    for title, paths in SECTIONS.items():
        yield f"\n## {title}"
        for path in paths:
            yield from _command(main.commands[name_of(path)], context)


def _command(command: click.Command, parent: click.Context) -> Iterator[str]:
    name = str(command.name)
    context = click.Context(
        command, parent=parent, info_name=name, max_content_width=WIDTH, terminal_width=WIDTH
    )
    yield f"\n### `{context.command_path.removeprefix('kvstream ')}`\n"
    yield _help(command, context)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            yield from _command(command.commands[child], context)


def _help(command: click.Command, context: click.Context) -> str:
    return f"```text\n{command.get_help(context)}\n```"


if __name__ == "__main__":
    click.echo("\n".join(reference()))
