"""Charts as PNG: what a training learned.

Figures and axes are ``Any`` here: matplotlib leaves its keyword arguments untyped.
"""

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from adapters.reports.content import LabelledEvaluation
from domain.maths.statistics import Estimate
from domain.service.evaluate import BatchPoint

_TRAINING = "#2457c5"
_HELD_OUT = "#d9480f"
_INK = "#3b4654"
_TOP = 1.2
_LABELS_AT = 1.04
"""Labels stand above every reward, where nothing is drawn that they could hide or be hidden by."""
_LABEL_WIDTH = 0.09
"""Of the axis."""


def learning_curve_png(curve: Sequence[BatchPoint], evaluations: Sequence[LabelledEvaluation]) -> bytes:
    """Return the training reward of each batch and the held-out evaluations, each with its 95 % interval.

    A batch stands at the number of the policy that sampled it: batch 0 by the first policy. A checkpoint's
    evaluation stands at the number of batches that the checkpoint has seen, so both lines share one axis.
    """
    figure: Any = Figure(figsize=(9.6, 4.0), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    _draw_training(axes, curve)
    _draw_evaluations(axes, evaluations)
    axes.set_xlabel("batches that the policy has learned from", color=_INK)
    axes.set_ylabel("mean reward", color=_INK)
    axes.set_ylim(-0.03, _TOP)
    axes.set_yticks([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.margins(x=0.06)
    left, right = axes.get_xlim()
    if right - left < 1:  # one point alone: Matplotlib would cut its number into fractions
        axes.set_xlim(left - 0.5, right + 0.5)
    axes.grid(visible=True, axis="y", color="#e3e7ec", linewidth=0.8)
    axes.tick_params(colors=_INK, labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#c3cad3")
    axes.legend(
        frameon=False, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=2, fontsize=9, labelcolor=_INK
    )
    out = io.BytesIO()
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(out, metadata={"Software": None})
    return out.getvalue()


def _draw_training(axes: Any, curve: Sequence[BatchPoint]) -> None:
    shown = [(point.index, point.mean) for point in curve if point.mean.value is not None]
    if not shown:
        return
    x = [index for index, _ in shown]
    axes.plot(
        x,
        [mean.value or 0.0 for _, mean in shown],
        color=_TRAINING,
        linewidth=2,
        marker="o",
        markersize=3.5,
        label="training batches (95 % interval)",
    )
    low, high = zip(*(_bounds(mean) for _, mean in shown), strict=True)
    if len(x) == 1:
        axes.vlines(x, low, high, color=_TRAINING, alpha=0.4)  # a band of one batch would have no width
    axes.fill_between(x, low, high, color=_TRAINING, alpha=0.14, linewidth=0)


def _draw_evaluations(axes: Any, evaluations: Sequence[LabelledEvaluation]) -> None:
    shown = [(item.batch, item.report.mean) for item in evaluations if item.report.mean.value is not None]
    if not shown:
        return
    values = [mean.value or 0.0 for _, mean in shown]
    bounds = [_bounds(mean) for _, mean in shown]
    axes.errorbar(
        [batch for batch, _ in shown],
        values,
        yerr=[
            [max(0.0, value - low) for value, (low, _) in zip(values, bounds, strict=True)],
            [max(0.0, high - value) for value, (_, high) in zip(values, bounds, strict=True)],
        ],
        color=_HELD_OUT,
        fmt="D--" if len(shown) > 1 else "D",
        markersize=6.5,
        linewidth=1.2,
        elinewidth=1.8,
        capsize=4,
        label="held-out evaluation (95 % interval)",
    )
    labelled = apart([batch for batch, _ in shown])
    for (batch, mean), value, (_, high) in zip(shown, values, bounds, strict=True):
        if batch in labelled:
            axes.vlines(batch, high, _LABELS_AT - 0.01, color=_HELD_OUT, alpha=0.45, linewidth=0.8, linestyles="dotted")
            axes.text(
                batch,
                _LABELS_AT,
                f"{value:.2f}\nn = {mean.n_tasks} × {_attempts(mean)}",
                ha="center",
                va="bottom",
                fontsize=8,
                linespacing=1.1,
                color=_HELD_OUT,
            )


def apart(batches: Sequence[int]) -> frozenset[int]:
    """Return the evaluations that carry a label: the last and the first, and as many others as fit between.

    Args:
        batches: where the evaluations stand, ascending.
    """
    kept = {batches[-1], batches[0]}
    least = (batches[-1] - batches[0]) * _LABEL_WIDTH
    for batch in reversed(batches):
        if all(abs(batch - other) >= least for other in kept):
            kept.add(batch)
    return frozenset(kept)


def _attempts(mean: Estimate) -> str:
    return f"{mean.n_attempts / mean.n_tasks:.3g}" if mean.n_tasks else "0"


def _bounds(mean: Estimate) -> tuple[float, float]:
    value = mean.value or 0.0
    return (value if mean.low is None else max(0.0, mean.low), value if mean.high is None else min(1.0, mean.high))
