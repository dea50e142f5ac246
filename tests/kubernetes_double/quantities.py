"""Quantities of resources: ``100m``, ``1.5Gi``, ``2e3``.

Source: apimachinery ``pkg/api/resource``, "Quantity".
"""

import re
from fractions import Fraction

_FORM = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)$")
_FACTORS = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{letter: Fraction(1000) ** (number + 1) for number, letter in enumerate("kMGTPE")},
    **{f"{letter}i": Fraction(1024) ** (number + 1) for number, letter in enumerate("KMGTPE")},
}


def amount(quantity: object) -> Fraction:
    """Return a quantity as a number. Raises ValueError."""
    found = _FORM.match(str(quantity))
    if found is None:
        raise ValueError(f"quantities must match the regular expression '{_FORM.pattern}'")
    number, exponent, suffix = found.groups()
    return Fraction(number) * Fraction(f"1{exponent}" if exponent else 1) * _FACTORS.get(suffix or "", Fraction(1))


def written(value: Fraction) -> str:
    """Return a number as a quantity: whole, or in thousandths."""
    return str(int(value)) if value.denominator == 1 else f"{int(value * 1000)}m"
