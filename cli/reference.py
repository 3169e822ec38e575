"""Print docs/cli.md from the help of all commands: ``python -m kvstream.cli.reference``.

A test compares the file with this output.
"""

from collections.abc import Iterator

import click

from kvstream.cli.app import SECTIONS, main, name_of
from kvstream.cli.exit_codes import MEANINGS
from kvstream.cli.file_formats import FIELDS_COLUMN, ID_COLUMN

WIDTH = 80
"""Columns of a help text, as on a terminal."""

INTRODUCTION = f"""\
# The command line

<!-- Written by `python -m kvstream.cli.reference > docs/cli.md`; do not edit. -->

`kvstream --store DIR COMMAND` works on the store in `DIR`, `kvstream --url URL COMMAND` on a
server. The examples below leave the option out: set `KVSTREAM_STORE` or `KVSTREAM_URL` instead.
An option goes before the environment.

## One process at a time

A store is embedded: either one process has it open for writing, or several have it open for
reading. A command that only reads opens the store read-only and changes nothing in it. If
another process has the store open, a command waits for `--wait` (1 s), then ends with exit code
3 and names that process; if it shares the store (`shared=True`, `kvstream work`), the command is
one of its clients, and only what needs the files is refused. `tail --follow` and `read --block`
poll the store, and leave it closed in between. To read what a long-running process writes, let it
write a checkpoint and open that; or run a server (`serve`) on the store, and use `--url`.

## On a server

`kvstream --url URL COMMAND` runs the same commands on a server, kvstream's or Redis's from 7.0
on, with the same output and exit codes. It needs redis-py: `pip install 'kvstream-db[server]'`. The
URL is `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]`, `rediss://...` for TLS, or
`unix:///PATH[?db=DB]`. In a password, write `/`, `:`, `@`, `%` and `#` as `%2F`, `%3A`, `%40`,
`%25` and `%23`. A URL with a password belongs in `KVSTREAM_URL`: other users of the machine can
see arguments. Options of redis-py may follow a `?`, as in `rediss://host?ssl_ca_certs=ca.pem` or
`?socket_timeout=300`; the default timeout of a reply is 60 seconds. No message shows the URL.

- What a command does in one commit on a store is one transaction (MULTI) on a server. `import`
  watches the stream if rows ask for IDs, and starts a batch again if another client writes to
  it. WATCH does not notice deliveries to groups: `group reset --drop-pending` and `consumer del`
  use the entries that were pending when they read them.
- `tail --follow` and `read --block` wait on the server, and show new entries at once.
- `checkpoint` runs BGSAVE, `compact` runs BGREWRITEAOF, `stats` shows INFO, and `bench` uses two
  streams `kvstream:bench:...`, which it deletes. `check`, `recover` and `serve` work on files
  and need `--store`. Durability was chosen when the server was started.
- An older server refuses what it does not know: `read --claim` before Redis
  8.4, `--ref-policy` and `ack --delete` before 8.2. A Redis before 7.2 does not report when a
  consumer was last active: `consumer ls` shows unknown, `info --full` never (-1).
- `queue`, `dead`, `delayed` and `schedule` need a server of kvstream; a Redis has no such commands.
- The backlog of a group is its lag, if the server knows it; otherwise up to 10,000 entries are
  counted.
- If the reply to a write is lost, the write may have been done or not; it is not sent again. The
  exit code is 5.

## Profiles

A profile names a place and the options that go with it. Profiles are in
`~/.config/kvstream/config.toml` (or the file that `KVSTREAM_CONFIG` names):

```toml
[profiles.prod]
url = "rediss://app:PASSWORD@db.example.com:6390"
wait = "10s"

[profiles.local]
store = "/var/lib/kvstream"
durability = "always"
```

`kvstream --profile prod ls`, or `KVSTREAM_PROFILE=prod`, uses the first. A profile has either
`store` or `url`, and may have `db`, `wait` and `durability`; options of the command line replace
them. A path is taken from the folder of the file. A file with a password must be readable by you
alone (`chmod 600`). The options of a server are in a file of its own: `kvstream serve --config`.

## A prompt

`kvstream shell --profile prod` runs commands at a prompt, without the word `kvstream`:

```text
kvstream prod> ls 'orders:*'
kvstream prod> find orders:eu sku=a1 --start now-1h
kvstream prod> tail -f orders:eu
```

Tab completes commands, options and the names of streams, groups and consumers; the arrow keys
walk through the history, which is kept in `~/.local/state/kvstream/history`. A line that begins
with a command of Redis in capitals, such as `XLEN orders`, is run by `cmd`. Each line opens the
store anew, so other processes can use it in between. Ctrl-C stops a command, Ctrl-D leaves.

## Output

- Tables are for people. On a terminal, names and values longer than `--max-width` are cut with
  an ellipsis; numbers, IDs and times never are. If a terminal is too narrow, columns that are
  seldom needed are left out and named above the table, then names are cut further, and at last
  each row becomes a block of lines. If stdout is not a terminal, nothing is cut, and each row is
  one line. Bytes that are not printable are escaped, as in `\\xff` or `\\x1b`.
- `--json` and `--format csv` are for programs. JSON is one object per line. CSV has a line of
  titles; entries are written as by `export`, nested values as JSON. Durations are in
  milliseconds if the name ends with `_ms`, as are `idle` and `inactive`; `ttl` and
  `idmp_duration` are in seconds; sizes are in bytes.
- Bytes are JSON strings if they are valid UTF-8, else `{{"base64": "..."}}`. The fields of an
  entry are an object, or a list of `[field, value]` pairs if a name repeats or is not UTF-8.
- An error is one line on stderr.
- A command also works if stdin, stdout or stderr is closed, as some daemons start programs: what
  it writes there is dropped. Only `export` to stdout and `read --noack` refuse a closed stdout,
  since their entries would be lost, and reading a closed stdin is an error. If stdout cannot be
  written, because its disk is full, the exit code is 5; what the command changed stays changed.

## IDs, times, durations, names

An ID is `ms-seq` or `ms`. If a help text says `ID|TIME`, a time may be used instead: a date, or
a date and time (ISO 8601, UTC by default), `now-15m`, `"1h ago"`, `"2 days ago"`, `"last hour"`
(one hour ago), `today` and `yesterday` (their midnight in UTC), or `"yesterday 14:00"`. `group
--start`, `read --after` and similar options then start with the entries of that time. Durations are
`500ms`, `10s`, `15m`, `2h`, `7d`; a number without a unit is in seconds. Names and values are the
bytes that the shell passes.

## Files

`export` writes, and `import` reads, without loss:

- **JSON Lines**: `{{"id": "1700000000000-0", "fields": {{"sku": "a1"}}}}`, as `--json` shows
  entries. `import` also reads flat objects, in which each name is a field: numbers keep their
  spelling, `true`, `false` and nested values become JSON text, and a field that is `null` is
  left out.
- **CSV**: a column for each field; a cell is empty if an entry lacks the field. `{ID_COLUMN}` is
  the ID; `{FIELDS_COLUMN}` has all fields of an entry as JSON if cells cannot hold them exactly.
  Files are UTF-8; `import` decodes others by their byte order mark, or with `--encoding`. A
  spreadsheet runs cells such as `=1+1`: `export --guard-formulas` puts a `'` before them, and
  `import --guard-formulas` takes it away.

An import keeps its progress in a small stream `kvstream:import:...` of the same database (shown
by `ls --all`), which is written in the commits that add the rows. So if it is killed at any
moment, the same command continues with the next row; none is lost or added twice. First it
compares a digest of the rows that were imported before, and refuses a file in which they have
changed. The progress of a finished import is kept for 30 days. Groups and counters are not
exported; `checkpoint` copies them.
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
