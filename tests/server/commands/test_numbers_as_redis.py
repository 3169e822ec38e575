"""INCRBYFLOAT parses, adds and formats numbers as redis-server on x86-64 does: as long doubles."""

import random

from tests.server.asking import Asker
from tests.server.conftest import Served

NUMBERS = """
0 1 -1 +5 5. .5 . + - -.5 00012.50 1e3 1E-3 1e 1e+ 1e400 -1e400 1e4931 1e4932 1e4933 1e-4931
1.18973149535723176502e+4932 3.6e-4951 1.8e-4951 1.9e-4951 1e-5000 0e99999 1e99999999 1e-99999999
0.1 0.2 0.3 1.1 3.14159 -2.25 1e17 1e18 4e-18 5e-18 15e-18 -4e-18 5.0000000000000001e-18
9223372036854775807 18446744073709551615 18446744073709551616 18446744073709551617
123456789012345678901234567890 17179869184.123456789 9223372036854775807.5
0x10 0X1F 0x1.8p3 0x.8 0x 0x. 0x1p 0x1p-3 0x1p16383 0x1p16384 -0x1p-10 +0xaBc.dEfP+2 0x1g
nan NaN nan(1) inf +inf -inf Infinity INFINIT --1 1_0 1,5 x
"""
ODD = ["", " 1", "1 ", "\t1", "٣", "1" * 4932, "0." + "1" * 5000, "1" * 5119, "0" * 5120]


def test_numbers_are_long_doubles(served: Served, redis82_port: int) -> None:
    chance = random.Random(7)
    numbers = [*NUMBERS.split(), *ODD]
    pairs = [(None, each) for each in numbers] + [(each, "0") for each in numbers]
    pairs += [("1e4932", "1e4932"), ("-1e4932", "-1e4932"), ("1e4932", "-1e4932")]
    pairs += [(chance.choice(numbers), chance.choice(numbers)) for _ in range(600)]
    pairs += [(repr(chance.uniform(-9, 9)), repr(chance.uniform(-1e9, 1e9))) for _ in range(300)]
    with Asker(redis82_port) as redis, Asker(served.port) as ours:
        for held, added in pairs:
            for asker in (redis, ours):
                asker.ask("DEL k")
                if held is not None:
                    asker.ask("SET", "k", held)
            request = "INCRBYFLOAT", "k", added
            assert ours.ask(*request) == redis.ask(*request), (held, added)
            assert ours.ask("GET k") == redis.ask("GET k")
