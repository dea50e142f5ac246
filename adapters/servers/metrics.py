"""What the model process tells a Prometheus server, and whether it lives: on an address of its own, never a box's.

Names follow Prometheus' own conventions: base units, ``_total`` for what only grows. No label carries a trial, a token
or anything of a request.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from domain.errors import SynthError

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
Figures = Callable[[], Mapping[str, int]]


class CallMetrics:
    """One process's figures."""

    def __init__(self) -> None:
        """Make an empty registry: nothing is global, so that two of them in one process do not mix."""
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._seconds = Histogram(
            "synth_model_call_seconds",
            "From a request's prompt to its recorded answer.",
            buckets=_SECONDS,
            registry=self._registry,
        )

    def observe(self, seconds: float) -> None:
        """Count an answered call."""
        self._seconds.observe(seconds)

    def follow(self, totals: Figures, levels: Figures) -> None:
        """Report figures that are counted elsewhere.

        Args:
            totals: what only grows, as ``n_<what>``.
            levels: what goes up and down, as ``n_<what>``.
        """
        self._registry.register(_Counted(totals, levels))

    def text(self) -> bytes:
        """Return all figures in Prometheus' text format."""
        return generate_latest(self._registry)


class _Counted(Collector):
    def __init__(self, totals: Figures, levels: Figures) -> None:
        self._totals, self._levels = totals, levels

    def collect(self) -> Iterator[Metric]:
        """Yield the figures as they are now."""
        for name, value in self._totals().items():
            yield CounterMetricFamily(_named(name), _said(name), value=value)
        for name, value in self._levels().items():
            yield GaugeMetricFamily(_named(name), _said(name), value=value)


def _named(name: str) -> str:
    return f"synth_model_{name.removeprefix('n_')}"


def _said(name: str) -> str:
    return f"Number of {name.removeprefix('n_').replace('_', ' ')}."


def create_metrics(metrics: CallMetrics, ready: Callable[[], None]) -> Starlette:
    """Return the ASGI application: ``/metrics``, ``/healthz``, ``/readyz``.

    Args:
        metrics: what is told.
        ready: raises a SynthError while something that calls need does not answer; may block.
    """

    async def told(_: Request) -> Response:
        return Response(metrics.text(), media_type=_TEXT)

    async def healthy(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def is_ready(_: Request) -> Response:
        try:
            await asyncio.to_thread(ready)
        except SynthError as error:
            return PlainTextResponse(f"{type(error).__name__}\n", 503)
        return PlainTextResponse("ok\n")

    return Starlette(routes=[Route("/metrics", told), Route("/healthz", healthy), Route("/readyz", is_ready)])
