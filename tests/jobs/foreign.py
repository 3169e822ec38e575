"""Messages that other programs may have written into a queue of jobs."""

_JOB: dict[str, str | bytes] = {
    "task": "square",
    "id": "forged",
    "args": b'[[],{"n":2}]',
    "at": "1700000000000",
}


def _of(**fields: str | bytes | None) -> dict[str, str | bytes]:
    every: dict[str, str | bytes | None] = {**_JOB, **fields}
    return {name: value for name, value in every.items() if value is not None}


REFUSED: dict[str, dict[str, str | bytes]] = {
    "nested": _of(args=b"[" * 2000 + b"]" * 2000),
    "nested without end": _of(args=b'{"a":' * 100_000),
    "nested argument": _of(args=b'[[],{"n":' + b"[" * 50_000 + b"]" * 50_000 + b"}]"),
    "nested headers": _of(headers=b"[" * 100_000),
    "nested msgpack": _of(args=b"\x91" * 100_000, format="msgpack"),
    "huge msgpack": _of(args=b"\xdd\xff\xff\xff\xff", format="msgpack"),
    "a list of headers": _of(headers=b"[1]"),
    "headers of bytes": _of(headers=b"\xff"),
    "digits": _of(args=b'[[],{"n":' + b"9" * 5000 + b"}]"),
    "digits of the time": _of(at=b"9" * 5000),
    "no time": _of(at="yesterday"),
    "a time before 1970": _of(at="-5"),
    "not UTF-8": _of(args=b"\xff"),
    "a task that is not UTF-8": _of(task=b"\xff"),
    "an ID that is not UTF-8": _of(id=b"\xff"),
    "a key that is not UTF-8": _of(key=b"\xff"),
    "another task": _of(task="cube"),
    "a long name": _of(task="x" * 100_000),
    "no task": _of(task=None),
    "no arguments": _of(args=None),
    "arguments that are no list": _of(args=b"1"),
    "a mapping in the place of a list": _of(args=b'[{"n":2},{}]'),
    "text in the place of a mapping": _of(args=b'[[],"n"]'),
    "an unknown format": _of(format="pickle"),
    "another type": _of(args=b'[[],{"n":"2"}]'),
    "half a surrogate": _of(args=b'[[],{"n":"\\ud800"}]'),
    "no number": _of(args=b'[[],{"n":NaN}]'),
    "nothing of a job": {"x": "y"},
}
"""No worker can run these."""
ODD: dict[str, dict[str, str | bytes]] = {
    "no ID": _of(id=None),
    "no time": _of(at=None),
    "a name twice": _of(args=b'[[],{"n":3,"n":2}]'),
    "an empty ID": _of(id=""),
    "a long ID": _of(id="x" * 70_000),
    "the time of a schedule": _of(id=None, **{"schedule:at": b"9" * 5000}),
}
"""These run."""
