"""``python -m demo.terminals [DIR]``: write the pictures of a terminal that the pages show, as SVG.

Each command runs on a pseudoterminal of its own, and a picture has what it has written, with its
colours: no line is made up. The store is that of a small shop whose worker has just run for some
seconds; the demo runs as ``make demo-quick`` does. IDs and times are those of the run, so two runs
do not draw the same. The path of the virtual environment is shortened to ``.venv``. Run it in the
root of a clone.
"""

from __future__ import annotations

import fcntl
import os
import pty
import random
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from html import escape
from itertools import pairwise
from pathlib import Path

from rich.style import Style
from rich.text import Text

from kvstream.jobs import Jobs, Worker

FOLDER = Path("docs/pictures")
COLUMNS, LINES = 116, 60
DEMO = "make demo-quick"
PICTURES = {
    "terminal-jobs.svg": (
        "kvstream --store shop jobs ls --count 12",
        "kvstream --store shop jobs count",
    ),
    "terminal-top.svg": ("kvstream --store shop top --once --streams 8",),
    "terminal-demo.svg": (DEMO,),
}
"""File and commands. The picture of the demo has its last lines alone."""
LINES_MAX = 42
CHARACTER, LINE, MARGIN = 8.4, 18, 16
"""Width of a character, height of a line, and the space around the text, in pixels."""
GROUND, INK = "#1d2229", "#d7dde4"
COLOURS = (INK, "#e8837c", "#93c98a", "#dcc074", "#8fb8de", "#c9a0dc", "#7fc6c6", INK)
"""Black, red, green, yellow, blue, magenta, cyan, white; the bright ones are the same."""
GREY = "#8a939e"
BRIGHT = 8
"""The number of the first bright colour, which is that of grey text."""


def colour_of(style: Style) -> str:
    """Return the colour of a style of the terminal; dim text is grey."""
    number = None if style.color is None else style.color.number
    if style.dim or number == BRIGHT:
        return GREY
    return INK if number is None or number > 2 * BRIGHT - 1 else COLOURS[number % BRIGHT]


def line_of(text: Text, y: int) -> str:
    """Return a line of a picture: spans of one colour each, as wide as in a terminal."""
    parts, plain = [], text.plain
    ends = sorted({0, len(plain), *(at for span in text.spans for at in span[:2])})
    for start, end in pairwise(ends):
        inside = [span.style for span in text.spans if span.start <= start < span.end]
        style = Style.combine([Style(), *(Style.parse(str(each)) for each in inside)])
        weight = ' font-weight="bold"' if style.bold else ""
        parts.append(f'<tspan fill="{colour_of(style)}"{weight}>{escape(plain[start:end])}</tspan>')
    width = f'textLength="{len(plain) * CHARACTER:g}"'
    return f'<text x="{MARGIN}" y="{y}" xml:space="preserve" {width}>{"".join(parts)}</text>'


def draw(title: str, written: str) -> str:
    """Return the SVG of what a terminal shows, its colours as escape sequences in ``written``."""
    lines = [Text.from_ansi(line.rstrip()) for line in written.rstrip("\n").split("\n")]
    columns = max(len(line.plain) for line in lines)
    width, height = round(columns * CHARACTER) + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" font-size="14" '
            'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" rx="8" fill="{GROUND}"/>',
            *(
                line_of(line, MARGIN + 13 + n * LINE)
                for n, line in enumerate(lines)
                if line.plain.strip()
            ),
            "</svg>\n",
        ]
    )


def write_shown(command: list[str], folder: Path) -> str:
    """Return what a command writes on a terminal; RuntimeError if it fails."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    paths = [str(Path.cwd()), *filter(None, [env.get("PYTHONPATH")])]
    env |= {"TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(paths)}
    written = b""
    with subprocess.Popen(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        while True:
            try:
                written += os.read(ours, 1 << 16)
            except OSError:  # the other side is closed
                break
    os.close(ours)
    text = written.decode().replace("\r\n", "\n").replace(sys.prefix, ".venv")
    if process.returncode:
        raise RuntimeError(f"{shlex.join(command)} has failed:\n{text}")
    return "\n".join(line.rpartition("\r")[2] for line in text.split("\n"))


def fill_shop(folder: Path) -> None:
    """Fill the store of the shop: orders with two groups, and jobs that a worker has run."""
    chance = random.Random(7)
    jobs = Jobs(folder / "shop", durability="no")

    @jobs.task(retries=1, backoff=[900])
    def charge_card(order: int) -> str:
        if order % 11 == 0:
            raise ConnectionError("bank.example did not answer")
        return f"p-{order}"

    @jobs.task(retries=0)
    def send_receipt(to: str) -> str:
        if "@" not in to:
            raise ValueError(f"{to} is no address")
        return "sent"

    with jobs:
        orders = jobs.store.stream("orders")
        orders.add_many([{"order": n, "cents": chance.randrange(500, 9000)} for n in range(4000)])
        billing, search = (orders.create_group(each, "0") for each in ("billing", "search-index"))
        billing.ack(*billing.consumer("billing-1").read(count=4000)[:-7])
        search.ack(*search.consumer("index-1").read(count=2600))
        for order in range(4001, 4013):
            charge_card.enqueue(order)
            send_receipt.enqueue("zoe" if order % 6 == 0 else "ann@example.org")
        stopping = threading.Event()
        worker = threading.Thread(target=Worker(jobs).run, args=[stopping])
        worker.start()
        while jobs.count(status=["queued", "running"]).total:
            time.sleep(0.1)
        stopping.set()
        worker.join()
        send_receipt.with_options(delay=3600).enqueue("ben@example.org")
        charge_card.enqueue(4013)


def main(folder: Path = FOLDER) -> None:
    """Write all pictures into a folder."""
    with tempfile.TemporaryDirectory(prefix="kvstream-terminals-") as name:
        place = Path(name)
        fill_shop(place)
        for file, commands in PICTURES.items():
            shown = []
            for command in commands:
                words = "demo --no-spark" if command == DEMO else command
                program = [sys.executable, "-m", *shlex.split(words)]
                lines = (
                    write_shown(program, Path.cwd() if command == DEMO else place)
                    .rstrip("\n")
                    .split("\n")
                )
                left_out = ["..."] if len(lines) > LINES_MAX else []
                shown += [
                    f"\x1b[34m$\x1b[0m \x1b[1m{command}\x1b[0m",
                    *left_out,
                    *lines[-LINES_MAX:],
                ]
            (folder / file).write_text(draw(" and ".join(commands), "\n".join(shown)))
            print(folder / file)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else FOLDER)
