"""The real asset graph over a platform of a test: ticks and runs in this process, as the daemon would make them."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from domain.service.platform import Platform
from resources.settings import Settings
from resources.synth import SynthResource
from sensors.launches import RUN_KEY

_PLATFORMS: dict[str, Platform] = {}


class KnownSynth(SynthResource):
    """Gives the platform that a test has made for a home."""

    def settings(self) -> Settings:
        """Return settings below the home."""
        return Settings(home=Path(self.home), ledger_url=f"sqlite:///{self.home}/ledger.db")

    def platform(self) -> Platform:
        """Return the test's platform."""
        return _PLATFORMS[self.home]


def code_location() -> dg.Definitions:
    """Return the definitions as Dagster loads them."""
    return importlib.import_module("definitions").defs


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Definitions, an instance in memory and a platform."""

    definitions: dg.Definitions
    instance: dg.DagsterInstance
    synth: KnownSynth

    @property
    def platform(self) -> Platform:
        """The platform."""
        return self.synth.platform()

    def tick(self, sensor: Any) -> dg.SensorResult:
        """Evaluate a sensor once and make its keys and events, in the daemon's order."""
        context: Any = dg.build_sensor_context(
            instance=self.instance, resources={"synth": self.synth}, definitions=self.definitions
        )
        with context:
            result: dg.SensorResult = sensor(context)
        for request in result.dynamic_partitions_requests or []:
            self.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        return result

    def run(self, request: dg.RunRequest, *, raise_on_error: bool = True) -> Any:
        """Execute what a sensor requested."""
        job: Any = self.definitions.resolve_job_def(request.job_name or "")
        return job.execute_in_process(
            partition_key=request.partition_key,
            run_config=request.run_config,
            instance=self.instance,
            tags={**request.tags, RUN_KEY: request.run_key or ""},
            raise_on_error=raise_on_error,
        )

    def drain(self, sensor: Any, most: int = 20) -> Iterator[Any]:
        """Run what a sensor requests, tick after tick, until it requests nothing."""
        for _ in range(most):
            requests = self.tick(sensor).run_requests or []
            if not requests:
                return
            for request in requests:
                yield self.run(request)


def instance_at(directory: Path) -> dg.DagsterInstance:
    """Return a Dagster instance in memory that keeps its files below a directory of the test."""
    kind: Any = dg.DagsterInstance
    return kind.ephemeral(str(directory))


def note(graph: "Graph", sensor: Any, run: dg.DagsterRun, kind: dg.DagsterEventType) -> Any:
    """Tell a run status sensor that a run has ended; returns its answer."""
    event = dg.DagsterEvent(event_type_value=kind.value, job_name=run.job_name, message="gone")
    context: Any = dg.build_run_status_sensor_context(
        sensor_name=sensor.name,
        dagster_event=event,
        dagster_instance=graph.instance,
        dagster_run=run,
        resources={"synth": graph.synth},
    )
    return sensor(context.for_run_failure() if kind is dg.DagsterEventType.RUN_FAILURE else context)


def make_graph(platform: Platform, home: Path) -> Graph:
    """Return the graph over a platform."""
    _PLATFORMS[str(home)] = platform
    synth = KnownSynth(home=str(home))
    defs = code_location()
    return Graph(
        definitions=dg.Definitions(
            assets=defs.assets,
            jobs=defs.jobs,
            sensors=defs.sensors,
            resources={"synth": synth},
            executor=dg.in_process_executor,
        ),
        instance=instance_at(home),
        synth=synth,
    )


def metadata_of(result: Any) -> dict[str, dict[str, Any]]:
    """Return metadata values by asset of a run."""
    found: dict[str, dict[str, Any]] = {}
    for event in result.get_asset_materialization_events():
        made = event.materialization
        found[made.asset_key.to_user_string()] = {name: item.value for name, item in made.metadata.items()}
    return found


def checks_of(result: Any) -> dict[str, bool]:
    """Return which checks passed in a run."""
    return {check.check_name: check.passed for check in result.get_asset_check_evaluations()}
