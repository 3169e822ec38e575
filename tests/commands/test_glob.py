"""Glob patterns."""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvstream.types import glob
from kvstream.types.glob import matcher
from tests.operations.implementations import RedisServer

TEXTS = st.text("ab-^]", min_size=1, max_size=5)
PATTERNS = st.text("ab*?[]^-\\", max_size=8)
SECONDS_MAX = 5.0


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("", "", "a"),
        ("*", "a abc", ""),
        ("a", "a", "b A aa"),
        ("a*", "a abc", "ba b"),
        ("ab*ba", "abba ab-ba", "aba ab-b b-ba"),
        ("ab*", "ab aba", "a ba"),
        ("*a", "a ba", "ab"),
        ("*a*b*", "ab xaxbx", "ba a"),
        ("h?llo", "hello hallo", "hllo heello"),
        ("h[ae]llo", "hello hallo", "hillo"),
        ("h[^e]llo", "hallo", "hello"),
        ("h[a-c]llo", "hbllo hcllo", "hdllo h-llo"),
        ("h[c-a]llo", "hbllo", "hdllo"),
        ("[a-]", "a ] ^", "b -"),  # a range that ends at ], as Redis parses it
        ("[\\]a]", "] a", "\\"),
        ("a[", "", "a a["),
        ("[ab", "a b", "c"),
        ("\\*", "*", "a \\*"),
        ("a\\", "a\\", "a"),
        ("[^]", "a", ""),
    ],
)
def test_patterns_match_whole_texts(pattern: str, yes: str, no: str) -> None:
    matches = matcher(pattern.encode())
    assert all(matches(text.encode()) for text in yes.split())
    assert not any(matches(text.encode()) for text in no.split())


def test_case_matters_unless_it_is_ignored() -> None:
    assert not matcher(b"A[b]c")(b"aBC")
    assert matcher(b"A[b]c", ignore_case=True)(b"aBC")


@pytest.mark.parametrize("pattern", [b"a*" * 5000 + b"b", b"*?" * 5000 + b"b", b"[" * 100_000])
def test_no_pattern_takes_long_or_exhausts_the_stack(pattern: bytes) -> None:
    began = time.thread_time()
    assert not matcher(pattern)(b"a" * 20_000)
    assert time.thread_time() - began < SECONDS_MAX


def test_more_stars_than_redis_follows_match_nothing() -> None:
    assert matcher(b"*?" * 1000 + b"*")(b"a" * 1000)
    assert not matcher(b"*?" * 1001)(b"a" * 1001)


@given(pattern=PATTERNS, text=TEXTS)
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_patterns_match_as_in_redis(pattern: str, text: str, redis_server: RedisServer) -> None:
    redis_server("FLUSHALL")
    redis_server("SET", text, "x")
    found = redis_server("KEYS", pattern or "\\")
    assert matcher((pattern or "\\").encode())(text.encode()) is bool(found), (pattern, text)


def test_patterns_that_differ_at_an_end_are_rejected_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stepped, matches = list[bytes](), glob._matches

    def noted(steps: list[frozenset[int] | None], text: bytes) -> bool:
        stepped.append(text)
        return matches(steps, text)

    monkeypatch.setattr(glob, "_matches", noted)
    tests = [matcher(b"p%d.*" % number) for number in range(1000)]
    tests += [matcher(b"*.x%d" % number) for number in range(1000)]
    assert sum(test(b"p7.x9") for test in tests) == 2
    assert stepped == 2 * [b"p7.x9"]
