"""Names and identities: ULIDs, unit keys, published references."""

import re
from dataclasses import dataclass

from domain.errors import ConfigurationError

_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
PARTITION_KEY = re.compile(r"^[a-z0-9][a-z0-9._-]{0,119}$")
"""What a partition key may look like. Source: Dagster 1.13, keys with ``|``, ``,``, ``[`` break the UI."""
_NAME = r"[a-z0-9][a-z0-9-]{0,38}"
_REFERENCE = re.compile(rf"^(?P<team>{_NAME})/(?P<name>{_NAME})@v(?P<version>[1-9][0-9]{{0,5}})$")


def ulid(milliseconds: int, randomness: bytes) -> str:
    """Return a lower-case ULID.

    Args:
        milliseconds: time since 1970, UTC.
        randomness: 10 bytes.

    Source: github.com/ulid/spec.
    """
    number = (milliseconds << 80) | int.from_bytes(randomness[:10], "big")
    return "".join(_CROCKFORD[(number >> shift) & 31] for shift in range(125, -1, -5))


def unit_key(experiment_id: str, index: int) -> str:
    """Return the partition key of the ``index``-th unit: a batch of a training, else a shard."""
    return f"{experiment_id}.b{index:05d}" if is_training(experiment_id) else f"{experiment_id}.s{index:03d}"


def is_training(identity: str) -> bool:
    """Say whether an experiment id or unit key belongs to a training experiment."""
    return identity.startswith("trn-")


def experiment_of(unit: str) -> str:
    """Return the experiment id inside a unit key."""
    return unit.rpartition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A published, immutable version: ``team/name@v1``."""

    team: str
    name: str
    version: int

    def __str__(self) -> str:
        """Return the written form."""
        return f"{self.team}/{self.name}@v{self.version}"

    @property
    def partition_key(self) -> str:
        """The key of this version in the asset graph: ``team.name.v1``."""
        return f"{self.team}.{self.name}.v{self.version}"


def parse_reference(text: str, *, field: str) -> Reference:
    """Read ``team/name@v1``.

    Raises:
        ConfigurationError: naming ``field`` when the text has another form.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None:
        msg = f"{field}: {text!r} is not a published reference"
        raise ConfigurationError(msg, hint="write team/name@v1, in lower case")
    return Reference(team=match["team"], name=match["name"], version=int(match["version"]))
