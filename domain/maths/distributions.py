"""Quantiles that the standard library lacks, without scipy (which the domain may not import)."""

import math
from functools import lru_cache
from statistics import NormalDist

_TINY = 1e-300
_EXPANSION_FROM = 1e4
"""Degrees of freedom from which the expansion is exact to rounding, while log-gamma differences lose digits."""


@lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t distribution, accurate to about 1e-9 relative.

    Args:
        probability: in (0, 1).
        degrees: degrees of freedom, > 0.

    Raises:
        ValueError: an argument is out of range.

    Source: Abramowitz and Stegun 26.7.1, inverted by bisection; 26.7.5 (expansion) for many degrees.
    """
    if not 0 < probability < 1 or not degrees > 0:
        msg = f"t_quantile({probability}, {degrees}): probability must be inside (0, 1) and degrees above 0"
        raise ValueError(msg)
    if degrees >= _EXPANSION_FROM:
        return _t_expansion(normal_quantile(probability), degrees)
    tail = min(probability, 1 - probability)
    low, high = 0.0, 1.0
    while _t_upper_tail(high, degrees) > tail:
        low, high = high, high * 2
    while high - low > 1e-12 * max(1.0, high):
        middle = (low + high) / 2
        if _t_upper_tail(middle, degrees) > tail:
            low = middle
        else:
            high = middle
    quantile = (low + high) / 2
    return quantile if probability > 0.5 else -quantile  # noqa: PLR2004 - the median


def normal_quantile(probability: float) -> float:
    """Return the quantile of the standard normal distribution; ``probability`` in (0, 1)."""
    return NormalDist().inv_cdf(probability)


def _t_expansion(z: float, degrees: float) -> float:
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def _t_upper_tail(t: float, degrees: float) -> float:
    return 0.5 * incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), 0 <= x <= 1.

    Source: Abramowitz and Stegun 26.5.8 (continued fraction), evaluated with Lentz's method.
    """
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _beta_fraction(a, b, x) / a


def _beta_fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for numerator in (even, odd):
            d = 1.0 / _away_from_zero(1.0 + numerator * d)
            c = _away_from_zero(1.0 + numerator / c)
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-15:  # noqa: PLR2004 - rounding of one term
            break
    return fraction


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
