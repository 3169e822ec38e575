"""A shared store whose directory is moved while it has an owner and clients."""

from functools import partial
from pathlib import Path

import kvstream
from kvstream import Store
from kvstream.errors import StoreError
from tests.patience import until


def is_refused(store: "Store[bytes]") -> bool:
    try:
        store.stream("s").add({"n": 0})
    except StoreError as error:
        return "removed or replaced while it was open" in str(error)
    return False


def test_the_new_store_has_an_owner_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "store"
    owner, client = (kvstream.open(path, shared=True) for _ in range(2))
    owner.stream("s").add({"n": 1})
    client.stream("s").add({"n": 2})
    path.rename(tmp_path / "moved")
    with kvstream.open(path, shared=True) as new:
        new.stream("s").add({"n": 3})
        for store in (client, owner):
            until(partial(is_refused, store), "writes to be refused")
            store.close()
        with kvstream.open(path, shared=True) as other:  # the old owner has left its socket alone
            other.stream("s").add({"n": 4})
        assert len(new.stream("s")) == 2
    with Store.open(path) as store:
        assert store.check() == []
    with Store.open(tmp_path / "moved") as store:
        assert len(store.stream("s")) >= 2
