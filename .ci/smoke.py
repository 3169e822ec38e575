"""Try an installed wheel: the compiled parts are there, and a store keeps what it is given.

The wheels of a release run this on each system (pyproject.toml, cibuildwheel), CI on one.
"""

import importlib
import importlib.resources
import importlib.util
import tempfile
from pathlib import Path

import kvstream

COMPILED = (
    *("storage._contexts", "storage._log", "layout._columns", "layout._compiled"),
    *("layout._packing", "meta._plain", "meta._strings", "rdb._compiled", "resp._waits"),
    *("resp._wire", "server._calls", "server._compiled"),
)

for module in COMPILED:
    importlib.import_module(f"kvstream.{module}")
assert (importlib.resources.files("kvstream") / "py.typed").is_file()
assert importlib.util.find_spec("meta") is None
assert importlib.util.find_spec("cli") is None
with tempfile.TemporaryDirectory() as folder:
    place = Path(folder, "store")
    with kvstream.Store.open(place, durability="always") as store:
        added = store.stream("s").add({"f": "v"})
    with kvstream.Store.open(place) as store:
        [entry] = store.stream("s").create_group("g", "0").consumer("c").read()
        assert entry.id == added
        assert store.check() == []
print(f"kvstream {kvstream.__version__} works")
