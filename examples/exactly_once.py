"""A pipeline with each effect exactly once, though its processes are killed again and again.

    python examples/exactly_once.py

The source sends numbered payments, and begins anew when it was killed: the store knows the
numbers it has had (``idmp``). The processor acknowledges a payment and adds to the totals in one
transaction. Both are processes that ``kill -9`` ends in the middle, until they get through. The
data is in the folder that ``DATA`` names in the environment, else in a temporary one.
"""

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable

from kvstream import Store

PAYMENTS = [("ann" if number % 3 else "bob", number) for number in range(60)]


def opened(folder: str) -> Store[str]:
    # A source may stand still for a day, and begin anew 10,000 numbers later.
    return Store.open(folder, decode=True, stream_idmp_duration_s=86400, stream_idmp_maxsize=10_000)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def source(folder: str, life: int) -> None:
    """Send all payments, from the first one on; die in the middle of the first lives."""
    with opened(folder) as store:
        payments = store.stream("payments")
        for number, (account, amount) in enumerate(PAYMENTS):
            payments.add({"account": account, "amount": amount}, idmp=("source", number))
            if number == 40 * life:
                die()


def process(folder: str, life: int) -> None:
    """Add each payment to the total of its account; die before, within and after a commit."""
    with opened(folder) as store:
        totals = store.stream("totals")
        group = store.stream("payments").create_group("totals", start="0", exist_ok=True)
        worker = group.consumer("worker")
        current = {row.fields["account"]: int(row.fields["total"]) for row in totals.scan()}
        for done in range(len(PAYMENTS) + 1):
            # What an earlier life has read and not acknowledged comes first.
            entries = worker.history(count=1) or worker.read(count=1)
            if not entries:
                return
            [payment] = entries
            assert payment.fields is not None  # nobody deletes payments
            if (life, done) == (1, 10):
                die()
            account = payment.fields["account"]
            current[account] = current.get(account, 0) + int(payment.fields["amount"])
            with store.transaction():
                totals.add({"account": account, "total": current[account]})
                if (life, done) == (2, 10):
                    die()
                group.ack(payment)
            if (life, done) == (3, 10):
                die()


def run(target: Callable[[str, int], None], folder: str) -> int:
    """Start a process again until it gets through; return how many lives it took."""
    for life in range(1, 10):
        # The parent has opened no store yet: with fork, its children may.
        each = multiprocessing.get_context("fork").Process(target=target, args=(folder, life))
        each.start()
        each.join()
        if each.exitcode == 0:
            return life
    raise SystemExit("it never gets through")


def main(folder: str) -> None:
    print("lives of the source:", run(source, folder))
    print("lives of the processor:", run(process, folder))
    with opened(folder) as store:
        print("payments:", len(store.stream("payments")), "sums:", len(store.stream("totals")))
        rows = store.stream("totals").scan()
        totals = {row.fields["account"]: int(row.fields["total"]) for row in rows}
        print("right:", sum(totals.values()) == sum(amount for _, amount in PAYMENTS))
        print("totals:", dict(sorted(totals.items())))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(os.environ.get("DATA", temporary))
