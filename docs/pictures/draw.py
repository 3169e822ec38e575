"""Draw the pictures of the pages: python docs/pictures/draw.py writes the SVG files beside it.

A picture has its own light ground, so it can be read on a dark page too, and no script and no font.
A box is (x, y, width, lines); an arrow is (points, label, place of the label).
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

Box = tuple[int, int, int, str]
Arrow = tuple[str, str, int, int]
LINE = 17
"""Height of a line of text."""
COLOURS = {"": "#e8eef7", "+": "#dff0e0", "!": "#f7e2e0", "-": "#eeeeee"}
"""By the first character of a text: a plain state, a good end, a bad end, something outside."""


def box(x: int, y: int, width: int, text: str) -> str:
    """Return a box with lines of text, each in the middle; the first line is bold."""
    kind = text[0] if text[0] in COLOURS else ""
    lines = text[len(kind) :].split("\n")
    height = LINE * len(lines) + 15
    parts = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" '
        f'fill="{COLOURS[kind]}" stroke="#4a5568"/>'
    ]
    for n, line in enumerate(lines):
        weight = ' font-weight="bold"' if n == 0 else ""
        parts.append(
            f'<text x="{x + width // 2}" y="{y + 20 + n * LINE}" text-anchor="middle"{weight}>'
            f"{escape(line)}</text>"
        )
    return "\n".join(parts)


def arrow(points: str, label: str, x: int, y: int) -> str:
    """Return an arrow through points, with lines of a label from (x, y) down."""
    parts = [f'<polyline points="{points}" fill="none" stroke="#4a5568" marker-end="url(#head)"/>']
    for n, line in enumerate(label.split("\n")):
        parts.append(f'<text x="{x}" y="{y + n * 15}" font-size="12">{escape(line)}</text>')
    return "\n".join(parts)


def picture(
    title: str, width: int, height: int, boxes: Sequence[Box], arrows: Sequence[Arrow]
) -> str:
    """Return a picture as the text of an SVG file."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" font-family="sans-serif" font-size="14">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="#4a5568"/></marker></defs>',
        f'<rect width="{width}" height="{height}" rx="8" fill="#fbfcfe"/>',
        *(arrow(*each) for each in arrows),
        *(box(*each) for each in boxes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


ENTRY = picture(
    "The life of an entry",
    760,
    250,
    [
        (20, 90, 110, "add\nXADD"),
        (190, 80, 140, "in the stream\nreaders and\nranges see it"),
        (410, 80, 140, "pending\nwith a consumer,\nin the PEL"),
        (620, 90, 125, "+acknowledged\nXACK"),
        (190, 195, 140, "!deleted\nXDEL, XTRIM"),
    ],
    [
        ("130,115 188,115", "one commit", 127, 75),
        ("330,105 408,105", "group\nreads", 345, 80),
        ("480,80 480,40 520,40 520,78", "claim: another consumer, one more delivery", 400, 30),
        ("550,115 618,115", "ack", 570, 108),
        ("690,139 690,218 332,218", "ack_delete, or a rule of retention", 440, 212),
        ("260,146 260,193", "delete, trim", 268, 178),
    ],
)
MESSAGE = picture(
    "The life of a message of a queue",
    800,
    300,
    [
        (20, 50, 130, "delayed\nput(delay=, at=)"),
        (20, 150, 120, "-put()\na schedule"),
        (240, 120, 110, "ready"),
        (460, 120, 110, "leased"),
        (680, 120, 100, "+done"),
        (680, 220, 100, "!dead\ndead letter"),
        (340, 225, 110, "waiting\nbackoff"),
    ],
    [
        ("150,75 270,75 270,118", "its time comes", 160, 68),
        ("140,170 200,170 200,140 238,140", "", 0, 0),
        ("350,130 458,130", "get: one commit", 355, 122),
        ("500,120 500,75 310,75 310,118", "the lease ends", 360, 68),
        ("570,136 678,136", "ack", 610, 130),
        ("550,152 550,240 678,240", "nack(fatal=True), or\nthe last delivery failed", 556, 200),
        ("490,152 490,245 452,245", "nack", 455, 190),
        ("338,245 295,245 295,154", "it is over", 235, 215),
        ("730,269 730,285 215,285 215,150 238,150", "redrive", 560, 280),
    ],
)
JOB = picture(
    "The life of a job",
    820,
    330,
    [
        (20, 40, 130, "scheduled\ndelay=, at="),
        (20, 140, 130, "-enqueue()\na cron schedule"),
        (240, 140, 100, "queued"),
        (450, 140, 100, "running"),
        (690, 140, 110, "+done\nresult kept"),
        (690, 235, 110, "!failed\ndead letter"),
        (450, 245, 100, "retrying"),
        (170, 275, 170, "-cancelled\nexpired, skipped"),
    ],
    [
        ("150,65 290,65 290,138", "its time", 190, 58),
        ("150,158 238,158", "one commit", 158, 150),
        ("340,152 448,152", "a worker", 365, 144),
        ("500,140 500,100 320,100 320,138", "the worker stops", 370, 92),
        ("550,156 688,156", "it returns: result, ack and", 555, 125),
        ("535,172 535,200 610,200 610,260 688,260", "the last try raises,\nor GiveUp", 615, 215),
        ("480,172 480,243", "raises", 438, 212),
        ("515,245 515,174", "a worker", 520, 235),
        ("745,286 745,315 420,315 420,200 300,200 300,174", "retry()", 600, 308),
        ("270,172 270,273", "cancel(), too old,\nrun_if is false", 165, 222),
    ],
).replace(
    "</svg>",
    '<text x="555" y="140" font-size="12">lists in one commit</text>\n</svg>',
)
FLOORS = picture(
    "The floors: a module imports only from floors below its own",
    760,
    470,
    [
        (
            20,
            15,
            720,
            "cli, console, spark, migration, adapters, jobs\nprograms, and jobs made of queues",
        ),
        (
            20,
            72,
            720,
            "aio, opening, shared, remote, inprocess\na store at any place",
        ),
        (
            20,
            129,
            720,
            "server, resp, commands\nsockets and turns; arguments in, replies out",
        ),
        (20, 186, 720, "inbox, queue, store, stream, group, arrow\nthe classes of the library"),
        (20, 243, 720, "replicas, bulkload, engine\nthe lock, the one commit, waiters, expiry"),
        (
            20,
            300,
            720,
            "operations, on meta\nwhat each command decides; streams, groups, pending",
        ),
        (
            20,
            357,
            720,
            "archive, storage\nthe log in an object store; RocksDB behind one door, durability",
        ),
        (20, 414, 720, "rdb, layout, types, errors\nbytes of Redis and of our rows; IDs, options"),
    ],
    [],
)
FILES = picture(
    "The files of a store",
    760,
    290,
    [
        (20, 20, 160, "-a commit\nrows of 3 families"),
        (260, 20, 220, "NNNNNN.log\nRocksDB's log: each commit"),
        (260, 120, 220, "WATERMARK\nhow far the log is fsynced"),
        (540, 20, 200, "NNNNNN.sst, .blob\ntables; large values"),
        (540, 120, 200, "MANIFEST, CURRENT\nwhich tables are in use"),
        (20, 225, 220, "KVSTREAM\nversion of the layout"),
        (260, 225, 220, "LOCK, shared.sock\none owner; its socket"),
        (540, 225, 200, "LOG, OPTIONS\nof RocksDB"),
    ],
    [
        ("180,44 258,44", "write", 195, 38),
        ("370,69 370,118", "after each fsync", 378, 98),
        ("480,44 538,44", "flush", 490, 38),
        ("640,69 640,118", "", 0, 0),
    ],
)
DEPLOY = picture(
    "Three ways to deploy",
    780,
    250,
    [
        (20, 20, 220, "library\nkvstream.open(dir)"),
        (20, 110, 220, "-one process\nyour program and the store"),
        (280, 20, 220, "shared directory\nopen(dir, shared=True)"),
        (280, 110, 100, "-process\nowner"),
        (400, 110, 100, "-process\nclient"),
        (540, 20, 220, "server\nkvstream serve"),
        (540, 110, 100, "-kvstream\nserver"),
        (660, 110, 100, "-any client\nof Redis"),
        (20, 190, 220, "directory\non a local disk"),
        (280, 190, 220, "directory\non a local disk"),
        (540, 190, 220, "directory\non a local disk"),
    ],
    [
        ("130,159 130,188", "", 0, 0),
        ("330,159 330,188", "", 0, 0),
        ("400,134 382,134", "", 0, 0),
        ("590,159 590,188", "", 0, 0),
        ("660,134 642,134", "", 0, 0),
    ],
)
PICTURES = {
    "entry": ENTRY,
    "message": MESSAGE,
    "job": JOB,
    "floors": FLOORS,
    "files": FILES,
    "deploy": DEPLOY,
}

if __name__ == "__main__":
    for name, text in PICTURES.items():
        Path(__file__).with_name(f"{name}.svg").write_text(text)
