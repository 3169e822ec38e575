"""Event sourcing: accounts whose state is the sum of their events, and a projection of it.

    python examples/event_sourcing.py

Each account is a stream of events. A command reads them, decides, and adds an event, all in one
transaction, so two commands at the same time cannot both spend the same money. Each event also
goes into one stream of all accounts, from which a projection makes the page of balances. The
projection is a consumer group: its rows and its position are one commit. The data is in the folder
that ``DATA`` names in the environment, else in a temporary one.
"""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor

import kvstream
from kvstream import Store


def balance(store: Store[str], account: str) -> int:
    """Return the sum of the events of an account."""
    signs = {"deposited": 1, "withdrawn": -1}
    events = store.stream(f"account:{account}").scan()
    return sum(signs[event.fields["type"]] * int(event.fields["amount"]) for event in events)


def change(store: Store[str], account: str, kind: str, amount: int) -> bool:
    """Add an event; return whether the account allows it."""
    with store.transaction():
        if kind == "withdrawn" and balance(store, account) < amount:
            return False
        store.stream(f"account:{account}").add({"type": kind, "amount": amount})
        store.stream("accounts").add({"account": account, "type": kind, "amount": amount})
        return True


def project(store: Store[str]) -> int:
    """Bring the page of balances up to date; return the number of events that were new."""
    group = store.stream("accounts").create_group("balances", start="0", exist_ok=True)
    page = store.stream("balances")
    page.set_retention(latest="account")  # only the newest row of each account stays
    new = 0
    while True:
        with store.transaction():
            events = group.consumer("projection").read(count=100)
            changed = {event.fields["account"] for event in events}
            for account in sorted(changed):
                page.add({"account": account, "balance": balance(store, account)})
            group.ack(events)
        new += len(events)
        if not events:
            return new


def main(folder: str) -> None:
    with kvstream.open(folder, decode=True) as store:
        for account in ("ann", "bob"):
            change(store, account, "deposited", 100)
        with ThreadPoolExecutor(8) as pool:  # twenty at once want 10 each of the 100
            tried = pool.map(lambda _: change(store, "ann", "withdrawn", 10), range(20))
            print("withdrawn:", sum(tried), "of 20")
        print("balances:", balance(store, "ann"), balance(store, "bob"))
        print("events projected:", project(store), "then", project(store))
        page = store.stream("balances").scan()
        print("page:", {row.fields["account"]: row.fields["balance"] for row in page})

        # Another projection begins with the first event, whenever it is made.
        kinds = [event.fields["type"] for event in store.stream("accounts").scan()]
        print({kind: kinds.count(kind) for kind in sorted(set(kinds))})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(os.environ.get("DATA", temporary))
