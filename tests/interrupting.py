"""Interrupts at each point of a call at which Python handles signals.

These points are the start of a function, and the return of one that is not written in Python,
still within its surroundings: a ``with`` block exits properly, and a ``try`` catches the interrupt.
"""

import dis
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

_CALLS = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX")}


@cache
def _guards(code: CodeType) -> list[Any]:
    table: list[Any] = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return table


def _guard_of(code: CodeType, offset: int) -> int | None:
    targets = [each.target for each in _guards(code) if each.start <= offset < each.end]
    return targets[-1] if targets else None


class _Interrupter:
    """Raises KeyboardInterrupt at a point, counted from 1."""

    def __init__(self, point: int) -> None:
        self.left = point
        self._before: dict[FrameType, int] = {}

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if frame.f_back is not None:
                self._before.pop(frame.f_back, None)
            self._pass()
        elif event == "opcode":
            code, now = frame.f_code, frame.f_lasti
            before = self._before.get(frame)
            self._before[frame] = now
            called = before is not None and code.co_code[before] in _CALLS
            if called and _guard_of(code, before or 0) == _guard_of(code, now):
                self._pass()
        else:
            self._before.pop(frame, None)
        return self

    def forget(self) -> None:
        """Release the frames, and the objects that they hold."""
        self._before.clear()

    def _pass(self) -> None:
        self.left -= 1
        if not self.left:
            sys.settrace(None)
            raise KeyboardInterrupt


def interrupted_at(point: int, call: Callable[[], object]) -> bool:
    """Make a call that is interrupted at a point; return False if it has fewer points."""
    interrupter, before = _Interrupter(point), sys.gettrace()
    sys.settrace(interrupter)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
        interrupter.forget()
    return interrupter.left <= 0
