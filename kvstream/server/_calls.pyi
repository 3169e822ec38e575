from typing import Any

BOUNDS: dict[str, int]

def bind(
    client: type,
    scripts: type,
    busy: type,
    interpreter: type,
    script: type,
    row: type,
    txn: type,
    batch: type,
) -> None: ...
def queue_plain(
    client: object, commands: dict[bytes, Any], most: int, argument_bytes: int
) -> int: ...

class PlainCalls:
    def __init__(
        self, dispatcher: object, by_word: dict[bytes, Any], readers: dict[type, Any]
    ) -> None: ...
    def run_queue(
        self,
        client: object,
        commands: list[Any],
        at: int,
        txn: object,
        room: object,
        replies: list[Any],
    ) -> int: ...

class ScriptCalls:
    def __init__(self, scripts: object, calls: PlainCalls) -> None: ...
    def begin(self, client: object, txn: object, interpreter: object, reads: bool) -> None: ...
    def end(self) -> None: ...
    def run_sha(self, txn: object, client: object, argv: list[bytes], reads: bool) -> Any: ...
    def __call__(self, *argv: Any) -> Any: ...
