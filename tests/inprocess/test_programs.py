"""Whole programs in processes of their own: what they import, how they end, what a child may do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvstream
from kvstream import Store
from tests.patience import PATIENCE_S

ROOT = Path(kvstream.__file__).resolve().parent.parent


def run(directory: Path, program: str, *options: str, measured: bool = True) -> str:
    """Run a program that must end without errors or warnings; return its output.

    ``measured``: where coverage is, the program's is measured too.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if not measured:
        environment = {k: v for k, v in environment.items() if not k.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, *options, "-c", program],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def length(directory: Path) -> int:
    """Return the entries of a program's store, after a check."""
    with Store.open(directory / "data", create=False) as store:
        assert store.check() == []
        return len(store.stream("s"))


def test_importing_the_package_imports_neither_redis_py_nor_the_server(tmp_path: Path) -> None:
    shown = run(
        tmp_path,
        "import sys, kvstream\n"
        "print([name for name in sys.modules if name.startswith(('redis', 'kvstream.server'))])\n"
        "print(kvstream.connect, kvstream.connect_async)",
    )
    assert shown.startswith("[]\n")


@pytest.mark.parametrize("function", ["connect", "connect_async"])
def test_without_redis_py_one_line_says_how_to_install_it(tmp_path: Path, function: str) -> None:
    shown = run(
        tmp_path,
        "import sys, kvstream\n"
        "sys.modules['redis'] = None\n"
        "try:\n"
        f"    kvstream.{function}('data')\n"
        "except ImportError as error:\n"
        "    print(error)",
    )
    assert shown == "redis-py is needed here: pip install 'kvstream-db[server]'\n"
    assert not (tmp_path / "data").exists()


UNCLOSED = """
import threading, time
import kvstream
r = kvstream.connect("data", durability=DURABILITY)
for n in range(10):
    r.xadd("s", {"n": n})
threading.Thread(target=lambda: r.xread({"s": "$"}, block=0), daemon=True).start()
while r.info("clients")["blocked_clients"] != 1:
    time.sleep(0.01)
"""

UNCLOSED_TASKS = """
import asyncio
import kvstream
async def main():
    r = kvstream.connect_async("data", durability=DURABILITY)
    await asyncio.gather(*(r.xadd("s", {"n": n}) for n in range(10)))
asyncio.run(main())
"""


@pytest.mark.parametrize("program", [UNCLOSED, UNCLOSED_TASKS], ids=["threads", "tasks"])
@pytest.mark.parametrize("durability", ["always", "everysec"])
def test_a_program_that_does_not_close_its_store_ends_normally(
    tmp_path: Path, program: str, durability: str
) -> None:
    run(tmp_path, program.replace("DURABILITY", repr(durability)), "-W", "ignore")
    assert length(tmp_path) == 10


CHILD = """
child = os.fork()
if child == 0:
    for r in clients:
        try:
            r.xadd("s", {"by": "the child"})
        except redis.ConnectionError as error:
            print(error, flush=True)
    for r in clients:
        r.close()
    sys.exit(42)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
"""

FORKING = """
import os, sys, threading
import kvstream, redis
r = MAKE
reader = threading.Thread(target=lambda: r.xread({"s": "$"}, block=20_000))
for n in range(10):
    r.xadd("s", {"n": n})
reader.start()
clients = [r, r]
CHILD
r.xadd("s", {"by": "the parent"})
reader.join(60)
assert not reader.is_alive()
""".replace("CHILD", CHILD)


def test_a_forked_child_is_refused_the_store_of_its_parent(tmp_path: Path) -> None:
    shown = run(tmp_path, FORKING.replace("MAKE", "kvstream.connect('data')"), "-W", "ignore")
    assert shown.count("StoreLocked") == 2
    assert length(tmp_path) == 11


def test_a_forked_child_is_refused_the_open_store_of_its_parent(tmp_path: Path) -> None:
    make = "kvstream.connect(kvstream.Store.open('data'))"
    shown = run(tmp_path, FORKING.replace("MAKE", make), "-W", "ignore")
    assert shown.count("the store was opened before a fork") == 2
    assert length(tmp_path) == 11


HELD_FORKING = """
import os, sys, threading
import kvstream, redis
store = kvstream.Store.open("data")
clients = [kvstream.connect(store, single_connection_client=single) for single in (False, True)]
held, over = threading.Event(), threading.Event()
def hold():
    pool, single = clients[0].connection_pool, clients[1]
    with pool._lock, pool._event_dispatcher._lock, single.single_connection_lock:
        held.set()
        over.wait()
threading.Thread(target=hold).start()
held.wait()
CHILD
over.set()
for r in clients:
    r.xadd("s", {"by": "the parent"})
""".replace("CHILD", CHILD)


def test_a_forked_child_waits_for_no_lock_of_redis_py_that_its_parent_holds(tmp_path: Path) -> None:
    shown = run(tmp_path, HELD_FORKING, "-W", "ignore")
    assert shown.count("the store was opened before a fork") == 2
    assert length(tmp_path) == 2


SINGLE_FORKING = """
import os, sys
import kvstream, redis
r = kvstream.connect("data", single_connection_client=True)
r.xadd("s", {"n": 1})
child = os.fork()
if child == 0:
    try:
        r.xadd("s", {"by": "the child"})
    except redis.ConnectionError as error:
        print(error, flush=True)
    sys.exit(42)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
r.xadd("s", {"by": "the parent"})
"""


def test_a_forked_child_is_refused_its_parent_s_connection(tmp_path: Path) -> None:
    assert "before a fork" in run(tmp_path, SINGLE_FORKING, "-W", "ignore")
    assert length(tmp_path) == 2


LOST_LOOP = """
import asyncio
import kvstream
store = kvstream.Store.open("data")
r = kvstream.connect_async(store)
async def main():
    global reading
    reading = asyncio.create_task(r.xread({"s": "$"}, block=0))
    while not len(store.engine.waiters):
        await asyncio.sleep(0.005)
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.close()
other = kvstream.connect(store)
other.xadd("s", {"n": 1})
other.xadd("s", {"n": 2})
print(other.xlen("s"), flush=True)
import os
store.close()
os._exit(0)  # asyncio has much to say of tasks without a loop
"""


def test_a_closed_event_loop_harms_no_other_waiter(tmp_path: Path) -> None:
    assert run(tmp_path, LOST_LOOP) == "2\n"
    assert length(tmp_path) == 2


INTERRUPTED = """
import signal, sys, threading, time
import kvstream, redis
from redis.connection import Encoder, PythonRespSerializer
# hiredis's serializer crashes where a signal comes while it packs.
packer = PythonRespSerializer(6000, Encoder("utf-8", "strict", False).encode)
r = kvstream.connect("data", durability=DURABILITY, protocol=2, command_packer=packer)
r.xgroup_create("s", "g", mkstream=True)
def consume():
    while not over:
        try:
            r.xreadgroup("g", "c", {"s": ">"}, block=20, noack=True)
        except redis.ConnectionError:  # it was in a turn that was interrupted
            pass
over = armed = False
consumer = threading.Thread(target=consume, daemon=True)
consumer.start()
sys.unraisablehook = lambda unraisable: None
def interrupt(*_):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.003, 0.0037)
added = interrupts = 0
begun = time.monotonic()
while (passed := time.monotonic() - begun) < 1 or (interrupts <= 50 and passed < 60):
    try:
        armed = True  # anew, for a destructor may have swallowed the last one
        with r.pipeline() as pipe:
            pipe.xadd("s", {"n": added}).xadd("s", {"n": added}).execute()
        armed = False
        added += 1
    except KeyboardInterrupt:
        interrupts += 1
signal.setitimer(signal.ITIMER_REAL, 0)
over = True
consumer.join(60)
assert not consumer.is_alive()
length = r.xlen("s")
assert length % 2 == 0
assert added * 2 <= length <= (added + interrupts) * 2, (added, length, interrupts)
assert interrupts > 50, interrupts
print("sound", interrupts, added)
"""


@pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="an interrupt may come between taking a lock and its block"
)
@pytest.mark.parametrize("durability", ["always", "no"])
def test_interrupts_at_any_moment_leave_a_client_that_works(
    tmp_path: Path, durability: str
) -> None:
    program = INTERRUPTED.replace("DURABILITY", repr(durability))
    # An exception that a signal raises within coverage's own lock leaves that lock held.
    assert run(tmp_path, program, measured=False).startswith("sound")
    assert length(tmp_path) > 0


SCRIPTS_INTERRUPTED = """
import signal
import kvstream
r = kvstream.connect("data", decode_responses=True)
signal.signal(signal.SIGVTALRM, signal.default_int_handler)
r.function_load("#!lua name=l\\nredis.register_function('f', function() while true do end end)")
loop = "while true do end"
for call in (
    lambda: r.eval("redis.call('set', 'k', 'v') " + loop, 0),
    lambda: r.eval("while true do redis.call('get', 'k') end", 0),
    lambda: r.eval(f"while true do pcall(function() {loop} end) end", 0),
    lambda: r.eval(f"local c = coroutine.wrap(function() {loop} end) c()", 0),
    lambda: r.eval("local t = {} t[1] = t t[2] = t return t", 0),
    lambda: r.fcall("f", 0),
    lambda: r.function_load("#!lua name=m\\n" + loop),
):
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.1)
        print(call())
    except KeyboardInterrupt:
        assert r.eval("return 5", 0) == 5
signal.setitimer(signal.ITIMER_VIRTUAL, 0)
assert r.get("k") is None
print("sound")
"""


def test_an_interrupt_ends_a_script_and_undoes_it(tmp_path: Path) -> None:
    assert run(tmp_path, SCRIPTS_INTERRUPTED, measured=False) == "sound\n"
