"""Stop sequences: a sample ends with the token that completes one.

The ids after it are as if they had never been sampled: each was drawn knowing only those before it, so a sample that is
cut at the first such token is the sample that a sampler which knows the sequences would have made.
"""

from collections.abc import Sequence
from dataclasses import replace

from domain.ports import Family, SampleResult
from domain.records.trial import StopReason


def cut(result: SampleResult, family: Family, sequences: Sequence[str]) -> tuple[SampleResult, str | None]:
    """Return the sample up to the first stop sequence, and which it was; the whole of it and None without one."""
    if not any(sequence in family.decode(result.sampled_ids) for sequence in sequences):
        return result, None
    low, high = 1, len(result.sampled_ids)
    while low < high:
        middle = (low + high) // 2
        written = family.decode(result.sampled_ids[:middle])
        low, high = (low, middle) if any(each in written for each in sequences) else (middle + 1, high)
    written = family.decode(result.sampled_ids[:low])
    found = min((each for each in sequences if each in written), key=written.index)
    shorter = replace(
        result, sampled_ids=result.sampled_ids[:low], logprobs=result.logprobs[:low], stop_reason=StopReason.STOP
    )
    return shorter, found
