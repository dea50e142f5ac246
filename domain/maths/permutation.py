"""A keyed permutation of 0 .. n-1 of which one value costs the same however large n is."""

from domain.records.canonical import digest_bytes

_ROUNDS = 4
"""Of a Feistel network: with three or more it is a pseudorandom permutation. Source: Luby and Rackoff, 1988."""


def permuted(position: int, n: int, *, key: str) -> int:
    """Return where ``position`` goes.

    Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002: cycle walking over a Feistel network on
    the next even number of bits, so at most four walks on average.

    Args:
        position: from 0 to n-1.
        n: size of the permuted set.
        key: names the permutation.

    Raises:
        ValueError: the position lies outside.
    """
    if not 0 <= position < n:
        message = f"position {position} is not in 0 .. {n - 1}"
        raise ValueError(message)
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    value = _shuffled(position, half, key)
    while value >= n:
        value = _shuffled(value, half, key)
    return value


def _shuffled(value: int, half: int, key: str) -> int:
    """Permute the numbers of ``2 * half`` bits."""
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for number in range(_ROUNDS):
        mixed = int(digest_bytes(f"{key}:{number}:{right}".encode())[:16], 16) & mask
        left, right = right, left ^ mixed
    return left << half | right
