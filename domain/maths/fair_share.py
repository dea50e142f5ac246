"""Weighted fair shares of several resources, for work that cannot be interrupted.

Source: dominant resource fairness by progressive filling (Ghodsi et al., NSDI 2011, algorithm 1), ordered as start-time
fair queueing orders flows (Goyal et al., 1996): by what a unit has had, plus what it would have soon.
"""

import heapq
from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from domain.records.capacity import Capacity, Grant

HORIZON_S = 10.0
"""A share counts as if held so long: past and present are weighed in one number, so that debts are paid back."""
_STEPS = 16
"""Into how many steps a unit's wish is cut: finer is fairer, and costs more at each settlement."""


def settle(mine: Grant, others: Sequence[Grant], budget: Capacity) -> Grant:
    """Return ``mine`` with its share, and what it holds, from now on.

    A share is never more than what the others do not hold, so the sum of what runs stays within the budget, whoever
    settles when. What runs beyond the share is kept until it ends, and then not replaced.

    Args:
        mine: the asking unit's grant with ``wanted``, ``head``, ``used`` and ``service`` as they are now.
        others: every other live unit's, as last written.
        budget: of the installation; infinity is no bound.
    """
    share = fair_shares([mine, *others], budget)[0]
    free = budget
    for other in others:
        free = free.minus(other.held)
    share = share.smaller(free)
    return replace(mine, share=share, held=share.larger(mine.used))


def fair_shares(grants: Sequence[Grant], budget: Capacity) -> list[Capacity]:
    """Return what each live unit should hold: whole trials at a time to the one that is furthest behind.

    Args:
        grants: at most a few dozen; the cost is 16 steps for each.
        budget: infinity is no bound.

    Returns:
        One amount for each grant, in order; together within the budget, each within what is wanted.
    """
    weights = [_weight(grant, grants) for grant in grants]
    shares = [Capacity() for _ in grants]
    left = budget
    line = [(grant.service, grant.unit, index) for index, grant in enumerate(grants)]
    heapq.heapify(line)
    while line:
        _, unit, index = heapq.heappop(line)
        grant = grants[index]
        missing = grant.wanted.minus(shares[index])
        step = _step(grant, _STEPS).smaller(missing)
        if step.lacking(left):
            step = _step(grant, None).smaller(missing)
        if step == Capacity() or step.lacking(left):
            continue
        shares[index] = shares[index].plus(step)
        left = left.minus(step)
        ahead = shares[index].share_of(budget) * HORIZON_S / weights[index]
        heapq.heappush(line, (grant.service + ahead, unit, index))
    return shares


def serviced(grant: Grant, grants: Sequence[Grant], budget: Capacity, now_ms: int) -> float:
    """Return the service of a unit up to now, by what it said it used."""
    elapsed_s = max(0, now_ms - grant.at_ms) / 1000
    return grant.service + grant.used.share_of(budget) * elapsed_s / _weight(grant, grants)


def newcomer_service(others: Sequence[Grant]) -> float:
    """Return the service that a new unit begins with: the least of the others', so that it brings no credit."""
    return min((other.service for other in others), default=0.0)


def _step(grant: Grant, n_steps: int | None) -> Capacity:
    """Return what so many average pieces of work take that ``n_steps`` make up the wish; None: what one takes."""
    n_pieces = max(grant.wanted.trials, grant.wanted.exports, 1.0)
    at_once = 1 if n_steps is None else ceil(n_pieces / n_steps)
    return grant.wanted.times(at_once / n_pieces).larger(grant.head)


def _weight(grant: Grant, grants: Sequence[Grant]) -> float:
    siblings = {other.unit for other in grants if other.experiment_id == grant.experiment_id} | {grant.unit}
    return grant.weight / len(siblings)
