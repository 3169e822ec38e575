"""The state machine that says the same to kvstream and to redis-server, over sockets."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.differential.grammar import Argv
from tests.differential.machines import BEGINNING, FIRST_IDS, NODE_BYTES, NODE_ENTRIES, Naming
from tests.differential.sameness import VERSIONS, Incomparable
from tests.differential.speaking import Conversation
from tests.differential.wire_grammar import ALSO, CLIENTS, LEAVE, wire_step


def steps_of(peer: str) -> st.SearchStrategy[Argv]:
    """Return the steps of the conversations with a server."""
    return st.randoms(use_true_random=True).map(lambda r: wire_step(r, peer))


STEPS_A_LOOK = 8
STREAMS = ("s", "t", "u")
GROUPS = ("g", "h")
LOOKS: list[Argv] = [
    ["KEYS", "*"],
    *(["TTL", key] for key in (*STREAMS, "string", "n")),
    ["MGET", "string", "n", "u", "missing"],
    *(["XINFO", "STREAM", key, "FULL", "COUNT", "0"] for key in STREAMS),
    *(["XRANGE", key, "-", "+"] for key in STREAMS),
    *(["XPENDING", key, group] for key in STREAMS for group in GROUPS),
    *(["XPENDING", key, group, "-", "+", "99"] for key in STREAMS for group in GROUPS),
]


class AgainstRedisOnTheWire(Naming, RuleBasedStateMachine):
    """Several clients, in both protocols; each says the same to both servers."""

    ports: tuple[int, int]
    """Of kvstream, and of the other server."""
    peer = "redis-7.0"
    by_bytes = False
    conversation: Conversation
    steps = 0
    over = False
    """Nothing more can be compared."""

    @initialize(entries=NODE_ENTRIES, size=NODE_BYTES)
    def begin(self, entries: int, size: int) -> None:
        self.conversation = Conversation(*self.ports, VERSIONS[self.peer], self.by_bytes)
        ask = self.conversation.ask
        ask(["CONFIG", "SET", "stream-node-max-entries", str(entries)])
        ask(["CONFIG", "SET", "stream-node-max-bytes", str(size)])
        for line in BEGINNING:
            assert ask(line.split())[0] != "-"
        self.ids = list(FIRST_IDS)

    @rule(argv=steps_of("redis-7.0"))
    def step(self, argv: Argv) -> None:
        self.send(argv)

    def send(self, argv: Argv) -> None:
        """Send the requests of a step by its client, or end the client."""
        if self.over:
            return
        client, requests = int(argv[0]), _part(argv[1:])
        if requests == [[LEAVE]]:
            self.conversation.leave(client)
            return
        requests = requests[: self.conversation.room(client)]
        if not requests:
            return
        requests = [self.with_ids(request) for request in requests]
        try:
            replies = self.conversation.say(client, *requests)
        except Incomparable:
            self.over = True
            return
        for request, (mark, value) in zip(requests, replies, strict=False):
            if request[0] == "XADD" and mark == "$" and value is not None:
                self.ids.append(value.decode())

    @invariant()
    def everything_is_the_same(self) -> None:
        self.steps += 1
        if self.steps % STEPS_A_LOOK == 0:
            self.look()

    def look(self) -> None:
        for db in () if self.over else ("1", "0"):
            self.conversation.ask_all([["SELECT", db], *LOOKS])

    def teardown(self) -> None:
        if not hasattr(self, "conversation"):
            return
        try:
            self.look()
            for client in range(CLIENTS):
                self.conversation.leave(client)
            self.conversation.ask(["PING"])
        finally:
            self.conversation.close()


class AgainstRedisByBytes(AgainstRedisOnTheWire):
    """The same, every byte sent by itself."""

    by_bytes = True


class AgainstRedis82(AgainstRedisOnTheWire):
    """The same with Redis 8.2, which knows XDELEX, XACKDEL and policies."""

    peer = "redis-8.2"

    @rule(argv=steps_of("redis-8.2"))
    def step(self, argv: Argv) -> None:
        self.send(argv)


class AgainstValkey(AgainstRedisOnTheWire):
    """The same with Valkey 9.1."""

    peer = "valkey-9.1"

    @rule(argv=steps_of("valkey-9.1"))
    def step(self, argv: Argv) -> None:
        self.send(argv)


def _part(argv: Argv) -> list[Argv]:
    requests: list[Argv] = [[]]
    for word in argv:
        if word == ALSO:
            requests.append([])
        else:
            requests[-1].append(word)
    return requests
