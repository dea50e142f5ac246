"""Plots as PNG inside Markdown, small enough for an event."""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

from domain.maths.statistics import Estimate
from domain.service.evaluate import BatchPoint

_DPI = 80


def learning_plot(curve: Sequence[BatchPoint]) -> str:
    """Return mean reward over batches with its interval; words when there is no trend yet."""
    points = [(point.index, point.mean) for point in curve if point.mean.value is not None]
    if len(points) < 2:  # noqa: PLR2004 - a line needs two points
        return "A curve needs two batches."
    return _drawn("mean reward of the batch", "batch", [index for index, _ in points], [mean for _, mean in points])


def family_plot(families: Mapping[str, Estimate]) -> str:
    """Return the mean of each family with its interval; words when tasks have no families."""
    shown = {name: estimate for name, estimate in families.items() if estimate.value is not None}
    if not shown:
        return "No family has a score."
    figure, axes = _axes(height=1.2 + 0.28 * len(shown))
    estimates = list(shown.values())
    values = [estimate.value or 0.0 for estimate in estimates]
    axes.barh(range(len(shown)), values, xerr=_errors(estimates), color="#4c72b0", ecolor="#333333", capsize=2)
    axes.set_yticks(range(len(shown)), [f"{name} (n={item.n_tasks})" for name, item in shown.items()])
    axes.invert_yaxis()
    axes.set_xlim(0.0, max(1.0, *values))
    axes.set_xlabel("mean reward, 95 % interval over tasks")
    return _markdown(figure, "mean reward by family")


def _drawn(what: str, axis: str, xs: Sequence[int], estimates: Sequence[Estimate]) -> str:
    figure, axes = _axes(height=2.8)
    values = [estimate.value or 0.0 for estimate in estimates]
    axes.errorbar(xs, values, yerr=_errors(estimates), marker="o", color="#4c72b0", ecolor="#9bb0d0", capsize=2)
    axes.set_ylim(min(0.0, *values), max(1.0, *values))
    axes.set_xlabel(axis)
    axes.set_ylabel(what)
    return _markdown(figure, what)


def _errors(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Return how far intervals reach below and above their values; 0 where there is none."""
    low = [_reach(estimate.value, estimate.low) for estimate in estimates]
    high = [_reach(estimate.high, estimate.value) for estimate in estimates]
    return [low, high]


def _reach(upper: float | None, lower: float | None) -> float:
    return 0.0 if upper is None or lower is None else max(0.0, upper - lower)


def _axes(*, height: float) -> tuple[Any, Any]:
    # Matplotlib takes most of a second to import; its pyplot, which opens windows, stays out.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, height), dpi=_DPI, layout="constrained")
    axes: Any = figure.add_subplot()
    axes.grid(visible=True, alpha=0.3)
    return figure, axes


def _markdown(figure: Any, words: str) -> str:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    sink = io.BytesIO()
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(sink)
    return f"![{words}](data:image/png;base64,{base64.b64encode(sink.getvalue()).decode()})"
