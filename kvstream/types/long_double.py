"""Numbers with a fraction as Redis holds them: C's long double of x86-64, with 64 significant bits.

A finite number is a Fraction, an infinite one a float. Python reads and writes no integer of more
than 4300 digits, but any Decimal.
"""

import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Final, TypeAlias

Number: TypeAlias = Fraction | float

_TEXT = re.compile(
    rb"(?P<sign>[+-]?)(?:"
    rb"0x(?=\.?[0-9a-f])(?P<hex>[0-9a-f]*)\.?(?P<hexes>[0-9a-f]*)(?:p(?P<power>[+-]?[0-9]{1,4000}))?"
    rb"|(?=\.?[0-9])(?P<whole>[0-9]*)\.?(?P<part>[0-9]*)(?:e(?P<exponent>[+-]?[0-9]{1,4000}))?"
    rb"|inf(?:inity)?)",
    re.IGNORECASE,
)
_TEXT_MAX = 5 * 1024 - 1
"""Characters of a number."""
_BITS = 64
MAX: Final = Fraction((1 << _BITS) - 1) * (1 << 16384 - _BITS)
"""The greatest finite number."""
_LEAST = Fraction(1, 1 << 16446)
"""Numbers up to this one are zero: half of the smallest one."""
_ORDINARY_BITS = 16000
_POWER_MAX = 1 << 16
"""A power of a number's text beyond this, in either direction, is out of range with any digits."""
_DECIMALS = 17


def parse(raw: bytes) -> Number:
    """Return the number of a text as C's strtold reads it; ValueError if there is none."""
    match = _TEXT.fullmatch(raw) if len(raw) <= _TEXT_MAX else None
    if match is None:
        raise ValueError
    if match["hex"] is not None:
        number = int(match["hex"] + match["hexes"], 16)
        power, radix = int(match["power"] or 0) - 4 * len(match["hexes"]), 2
    elif match["whole"] is not None:
        number = int(Decimal((match["whole"] + match["part"]).decode()))
        power, radix = int(match["exponent"] or 0) - len(match["part"]), 10
    else:
        return float(raw)
    if not number:
        return Fraction()
    if abs(power) > _POWER_MAX:
        raise ValueError
    scale = radix ** abs(power)
    exact = Fraction(number * scale) if power >= 0 else Fraction(number, scale)
    if _is_extreme(exact) and (exact > MAX or exact <= _LEAST):
        raise ValueError
    return round_exact(-exact if match["sign"] == b"-" else exact)


def round_exact(exact: Fraction) -> Number:
    """Return the nearest number that there is; an infinite one beyond the greatest."""
    top, bottom = exact.numerator, exact.denominator
    left = _BITS - top.bit_length() + bottom.bit_length()
    if abs(_shift(top, left)) >= _shift(bottom, -left) << _BITS:
        left -= 1
    whole = _nearest(_shift(top, left), _shift(bottom, -left))
    number = Fraction(_shift(whole, -left), _shift(1, left))
    if _is_extreme(number) and abs(number) > MAX:
        return -math.inf if top < 0 else math.inf
    return number


def text(number: Fraction) -> bytes:
    """Return the text of a number: 17 digits after the point, without zeros at the end."""
    scaled = _nearest(number.numerator * 10**_DECIMALS, number.denominator)
    whole, part = divmod(abs(scaled), 10**_DECIMALS)
    digits = f"{'-' if scaled < 0 else ''}{Decimal(whole)}.{part:0{_DECIMALS}d}"
    return digits.rstrip("0").rstrip(".").encode()


def _is_extreme(number: Fraction) -> bool:
    """Return whether it is worth the time to compare a number with the limits."""
    return abs(number.numerator.bit_length() - number.denominator.bit_length()) > _ORDINARY_BITS


def _shift(number: int, left: int) -> int:
    return number << left if left > 0 else number


def _nearest(top: int, bottom: int) -> int:
    """Divide, and round a half to the even neighbour."""
    whole, rest = divmod(top, bottom)
    return whole + (2 * rest > bottom or (2 * rest == bottom and whole % 2 == 1))
