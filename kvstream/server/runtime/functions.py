"""The functions of one server: the libraries of its store, compiled.

The store has the text of each library. A turn that needs functions compares the texts with the
compiled ones, so nothing is undone here when a turn is rolled back. Functions have an interpreter
of their own, as in Redis: what a library keeps in local variables lives until FUNCTION FLUSH, a
change of the library, or the end of the server.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from kvstream.commands.args import text
from kvstream.commands.command import LATER, Answer, Command
from kvstream.errors import RequestError
from kvstream.logs import DeferredLogger
from kvstream.meta.txn import Txn
from kvstream.operations import functions
from kvstream.operations.functions import Libraries, Policy, parse
from kvstream.server.runtime.busy import FUNCTION_KILL
from kvstream.server.runtime.client import Argv, Client
from kvstream.server.runtime.scripts import Scripts, key_count
from kvstream.server.scripting.libraries import LOAD_S, START_S, Function, Names, register
from kvstream.server.scripting.sandbox import Interpreter
from kvstream.server.scripting.script import ScriptFlag
from kvstream.types.clock import monotonic

_log = DeferredLogger(__name__)
FUNCTION_BYTES: Final = 200
"""Memory of a function beside its text, for INFO."""


class Functions:
    """The libraries of functions, and the interpreter that runs them."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._interpreter: Interpreter | None = None
        self._texts: Libraries = {}
        """The libraries that are compiled, or cannot be."""
        self._functions: dict[bytes, Function] = {}
        """The functions by name."""
        self._names: dict[bytes, bytes] = {}
        """Names of functions by their lower-case form; the first one if several have the same."""

    @property
    def memory(self) -> int:
        """The bytes that the interpreter takes."""
        return 0 if self._interpreter is None else self._interpreter.memory

    @property
    def text_memory(self) -> int:
        """The bytes that the texts of libraries take, for INFO."""
        texts = sum(map(len, self._texts.values()))
        return texts + FUNCTION_BYTES * len(self._functions)

    def counts(self, txn: Txn) -> tuple[int, int]:
        """Return how many libraries and functions there are."""
        if not self._scripts.busy.is_on:  # else the store is in use
            self._update(txn)
        return len(self._texts), len(self._functions)

    def of(self, txn: Txn, library: bytes) -> list[Function]:
        """Return the functions of a library."""
        self._update(txn)
        return [each for each in self._functions.values() if each.library == library]

    # --- changes --------------------------------------------------------------------------------

    def load(self, txn: Txn, source: bytes, replace: bool) -> bytes:
        """Store a library, and return its name; raise RequestError if it does not compile."""
        self._update(txn)
        name = parse(source).name
        if not replace and name in self._texts:
            raise RequestError(f"Library '{text(name)}' already exists")
        with self._replace_libraries([source], {name}):
            functions.load(txn, source, replace=True)
        self._texts = functions.libraries(txn)
        return name

    def restore(self, txn: Txn, payload: bytes, policy: Policy) -> None:
        """Store the libraries of a payload, or raise RequestError and store none."""
        self._update(txn)
        added = functions.parse_payload(payload)
        functions.merge(txn, added, policy)  # as in Redis, before the names of functions
        gone = self._texts.keys() if policy is Policy.FLUSH else added.keys()
        with self._replace_libraries(added.values(), gone):
            functions.restore(txn, payload, policy)
        self._texts = functions.libraries(txn)

    # --- compiled libraries ---------------------------------------------------------------------

    def _update(self, txn: Txn) -> None:
        """Compile the libraries of the store that have changed, and forget those that are gone."""
        texts = functions.libraries(txn)
        if texts is self._texts:
            return
        known = self._texts
        if not texts:
            self._interpreter = None
            self._functions.clear()
            self._names.clear()
        self._forget({name for name in known if known[name] != texts.get(name)})
        self._texts = texts
        for name in sorted(name for name in texts if known.get(name) != texts[name]):
            try:
                with self._replace_libraries([texts[name]], (), START_S):
                    pass
            except RequestError as error:
                _log.warning("the functions of %s cannot be used: %s", text(name), error)

    @contextmanager
    def _replace_libraries(
        self, sources: Iterable[bytes], gone: Collection[bytes], seconds: float = LOAD_S
    ) -> Iterator[None]:
        """Compile libraries; after the block their functions replace those of the libraries gone.

        Raises RequestError, before the block, if one fails or the name of a function is taken.
        """
        try:
            compiled: list[Function] = []
            names = Names(each for each in self._functions.values() if each.library not in gone)
            for source in sources:
                added = self._compile(source, seconds)
                names.take(added)
                compiled += added
            yield
        except BaseException:
            if self._interpreter is not None:
                self._interpreter.drop_libraries()
            raise
        self._forget(gone)
        if compiled and self._interpreter is not None:
            self._interpreter.use_libraries(each.name for each in compiled)
        for each in compiled:
            self._functions[each.name] = each
            self._names.setdefault(each.name.lower(), each.name)

    def _forget(self, libraries: Collection[bytes]) -> None:
        """Forget the functions of libraries."""
        for each in [each for each in self._functions.values() if each.library in libraries]:
            del self._functions[each.name]
            self._names.pop(each.name.lower(), None)
            self._scripts.quick.discard(each.name.lower())
            if self._interpreter is not None:
                self._interpreter.forget(each.name)

    def _compile(self, source: bytes, seconds: float) -> list[Function]:
        """Return the functions that a library registers; raise RequestError if it fails."""
        if self._interpreter is None:
            self._interpreter = self._scripts.new_interpreter()
        self._scripts.load_until = monotonic() + seconds
        try:
            return register(self._interpreter, source)
        finally:
            self._scripts.load_until = None

    def _find(self, name: bytes) -> Function | None:
        """Return the function of a name, in letters of any case."""
        exact = name if name in self._functions else self._names.get(name.lower(), b"")
        return self._functions.get(exact)

    def only_reads(self, txn: Txn, command: Command, argv: Argv) -> bool:
        """Return whether the script or function of a request has the flag no-writes."""
        if command.name != "fcall":
            return self._scripts.only_reads(argv, by_sha=command.name == "evalsha")
        self._update(txn)
        function = self._find(argv[1])
        return function is not None and ScriptFlag.NO_WRITES in function.flags

    # --- calls ----------------------------------------------------------------------------------

    def call(self, txn: Txn, client: Client, argv: Argv, reads: bool) -> Answer:
        """Run FCALL; ``reads``: the function may not write."""
        scripts = self._scripts
        if scripts.waits(client, argv[1].lower()):
            return LATER
        scripts.dispatcher.recorder.show(client, argv)  # before the calls of the function
        self._update(txn)
        function = self._find(argv[1])
        if function is None:
            if self._texts and self._interpreter is None:
                scripts.new_interpreter()  # raises NoLua
            raise RequestError("Function not found")
        keys = key_count(argv, "Bad number of keys provided")
        interpreter = self._interpreter
        assert interpreter is not None
        interpreter.make_room(2 * sum(map(len, argv[3:])))
        if not interpreter.has(function.name):  # its Lua state ran out of memory, and is a new one
            with self._replace_libraries(
                [self._texts[function.library]], {function.library}, START_S
            ):
                pass
        scripts.busy.request = argv
        return scripts.call(
            *(interpreter, function.name, txn, client, argv, keys, function.flags, reads),
            kill=FUNCTION_KILL,
        )
