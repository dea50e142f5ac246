"""The budget of an installation, as ``SYNTH_BUDGET`` writes it: ``trials=64 cpus=8 memory_mb=16000 model_calls=32``."""

from dataclasses import dataclass, replace
from math import inf, isfinite

from domain.errors import ConfigurationError
from domain.records.capacity import RESOURCES, UNBOUNDED, Capacity
from domain.records.wording import one_of

_VARIABLE = "SYNTH_BUDGET"
_MODEL_CALLS = "model_calls"
_DEFAULT = replace(UNBOUNDED, trials=64.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much may be under way at once, over all experiments."""

    capacity: Capacity = _DEFAULT
    """What the ledger grants to units."""
    model_calls: int | None = None
    """Model calls that are sampled at once; the others wait at the proxy. None: no bound but the trials' own."""


def read_budget(text: str) -> Budget:
    """Return the budget that a setting describes; what it does not name keeps its default.

    Raises:
        ConfigurationError: naming the wrong part.
    """
    amounts = Budget().capacity.bounded()
    model_calls: int | None = None
    for part in text.replace(",", " ").split():
        name, _, value = part.partition("=")
        if name not in {*RESOURCES, _MODEL_CALLS}:
            hint = f"{one_of(name, [*RESOURCES, _MODEL_CALLS])}; write for example trials=64 cpus=8"
            raise ConfigurationError(f"{_VARIABLE}: no resource {name!r}", hint=hint)
        amount = _amount(name, value)
        if name == _MODEL_CALLS:
            model_calls = int(amount)
        else:
            amounts[name] = amount
    return Budget(capacity=replace(UNBOUNDED, **amounts), model_calls=model_calls)


def write_budget(budget: Budget) -> str:
    """Return the text from which :func:`read_budget` reads the same."""
    amounts = {name: f"{amount:g}" for name, amount in budget.capacity.bounded().items()}
    if budget.model_calls is not None:
        amounts[_MODEL_CALLS] = str(budget.model_calls)
    unbounded = {"trials": "inf"} if budget.capacity.trials == inf else {}
    return " ".join(f"{name}={amount}" for name, amount in {**amounts, **unbounded}.items())


def _amount(name: str, text: str) -> float:
    """Read an amount; ``inf`` is no bound."""
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    whole = name not in {"cpus", "memory_mb", "disk_mb"}
    least = 0 if name == "gpus" else 1 if whole else 1e-3
    if amount == inf and name != _MODEL_CALLS:
        return amount
    if not isfinite(amount) or amount < least or (whole and amount != int(amount)):
        kind = "whole number" if whole else "number"
        raise ConfigurationError(f"{_VARIABLE}: {name}: {text!r} is no {kind} from {least:g}")
    return amount
