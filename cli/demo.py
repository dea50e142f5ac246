"""``synth demo``: the main job on one machine, resumable, left running for the UI to show."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import options, terminal
from cli.connection import named_home, platform, settings, use_home, use_memory_boxes
from cli.work_log import WorkLog

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cli.demo_summary import DemoResult, PeakMemory
    from cli.up import Up
    from domain.ports import Progress
    from domain.records.experiment import Experiment
    from domain.service.platform import Platform
    from resources.settings import Settings


def demo(
    *,
    seed: Annotated[int, typer.Option(min=0, help="Other tasks, another base policy, other samples.")] = 0,
    batches: Annotated[
        int | None, typer.Option(min=1, help="Optimizer steps; default: those of examples/train-plan.json.")
    ] = None,
    home: Annotated[Path | None, typer.Option(help="State directory; instead of SYNTH_HOME.")] = None,
    as_json: options.Json = False,
) -> None:
    """Do the main job: make a base policy, evaluate it on held-out tasks, train it, evaluate it again, report.

    Everything runs through `synth up`, which is left running so that its UI can be looked at. An interrupted demo goes
    on where it was when it is run again; what is finished is not done again.

    JSON: {seed, batches, base, trained, gain, gain_over_tasks, n_ungraded, wall_s, worked_s, stages_s, peak_rss_bytes,
    ui, report, experiments}.
    """
    use_home(home)
    use_memory_boxes()  # some two thousand trials of tiny tasks
    try:
        with terminal.bars(shown=not as_json) as progress:
            found = _Demo(seed=seed, batches=batches, progress=progress, quiet=as_json).run()
    except KeyboardInterrupt:
        terminal.note("interrupted: run it again to go on; what `synth up` runs goes on by itself until `synth down`")
        raise
    if as_json:
        terminal.emit(found)
    else:
        from cli.demo_summary import show

        show(found, named_home())


class _Demo:
    """One run of the demo."""

    def __init__(self, *, seed: int, batches: int | None, progress: "Progress", quiet: bool) -> None:
        self._seed = seed
        self._batches = batches
        self._progress = progress
        self._quiet = quiet
        self._started_s = time.monotonic()
        self._stages: dict[str, float] = {}
        self._stage_name = ""
        self._stage_started_s = self._started_s

    def run(self) -> "DemoResult":
        """Do what is not done yet, and return the numbers."""
        from cli.demo_setup import prepare
        from cli.demo_summary import PeakMemory, summarize
        from cli.reporting import write_report
        from cli.up import up

        where, opened, memory = settings(), platform(), PeakMemory()
        log = WorkLog(path=where.home / "demo" / f"work-{self._seed}.json")
        self._progress = _beating(self._progress, log)
        with ThreadPoolExecutor(1) as beside:
            # Starting takes ten seconds of waiting for processes; the base policy is made meanwhile.
            starting = beside.submit(up, where, detach=True, say=lambda line: self._note(f"          Synth: {line}"))
            starting.add_done_callback(self._say_started)
            setup = prepare(opened, where.home, self._seed, self._batches, self._progress, self._stage)
            if not starting.done():
                self._stage("waiting for Synth to be ready")
            running = starting.result()
        memory.watch(running)
        base, training = setup.submit(opened)
        self._await(opened, where, base, "held-out evaluation of the base policy", memory)
        self._await(opened, where, training, "training", memory)
        trained = self._trained(opened, training)
        self._await(opened, where, trained, "held-out evaluation of the trained policy", memory)
        self._stage("report")
        directory = where.home / "reports" / training.experiment_id
        report = write_report(opened, training.experiment_id, directory, n_transcripts=200, progress=self._progress)
        self._stage("")
        return summarize(
            opened,
            setup,
            (base, training, trained),
            wall_s=time.monotonic() - self._started_s,
            log=log,
            stages_s=self._stages,
            peak_rss_bytes=memory.peak_bytes,
            ui=running.ui,
            report=report.path,
        )

    def _await(
        self, opened: "Platform", where: "Settings", experiment: "Experiment", what: str, memory: "PeakMemory"
    ) -> None:
        """Wait for the end of an experiment. Raises SynthError when it cannot come, or did not succeed."""
        from cli.watch import wait
        from domain.errors import SynthError

        self._stage(what)

        def check() -> None:
            memory.sample()
            _check_alive(opened, where, experiment.experiment_id)

        view = wait(opened, experiment.experiment_id, self._progress, what, check)
        if view.experiment.state.value != "succeeded":
            reasons = "; ".join(unit.detail for unit in view.units if unit.detail) or "see its events"
            raise SynthError(
                f"{what}: {experiment.experiment_id} {view.experiment.state.value}: {reasons}",
                hint=f"synth run events {experiment.experiment_id}",
            )

    def _trained(self, opened: "Platform", training: "Experiment") -> "Experiment":
        """Return the evaluation of the last checkpoint, accepted before the training ended. Raises SynthError."""
        from domain.errors import SynthError
        from domain.service.evaluate import evaluations_of

        found = evaluations_of(opened, training.experiment_id)
        if not found:
            raise SynthError(
                f"{training.experiment_id} made no checkpoint: no batch carried signal",
                hint="the base policy solves all or nothing of the practice tasks; try another --seed",
            )
        return max(found, key=lambda item: int(item.spec.labels["batch"]))

    def _stage(self, name: str) -> None:
        """Say that a stage begins, and how long the one before took."""
        from cli.formats import duration

        now_s = time.monotonic()
        if self._stage_name:
            took_s = now_s - self._stage_started_s
            self._stages[self._stage_name] = round(took_s, 1)
            self._note(f"{_clock()}  {self._stage_name}: done in {duration(took_s)}")
        self._stage_name, self._stage_started_s = name, now_s
        if name:
            self._note(f"{_clock()}  {name} ...")

    def _say_started(self, starting: "Future[Up]") -> None:
        """Say when Synth is up, which is while something else is under way."""
        if not starting.cancelled() and starting.exception() is None:
            self._note(f"{_clock()}  Synth is up: {starting.result().ui}")

    def _note(self, line: str) -> None:
        if not self._quiet:
            terminal.note(line)


def _clock() -> str:
    """Return the time of day: a number of seconds in front of a stage would read as how long it took."""
    return time.strftime("%H:%M:%S")


def _beating(progress: "Progress", log: WorkLog) -> "Progress":
    """Return a callback that also notes in the log that this call still works."""

    def report(what: str, done: int, total: int) -> None:
        log.beat()
        progress(what, done, total)

    return report


def _check_alive(opened: "Platform", where: "Settings", experiment_id: str) -> None:
    """Raise SynthError when nothing runs any more, or a unit waits for an operator."""
    from cli.up import status
    from domain.errors import SynthError
    from domain.records.experiment import UnitState

    if status(where) is None:
        raise SynthError(
            "`synth up` ended while the demo waited", hint=f"see {where.logs}; run the demo again to go on"
        )
    with opened.ledger.snapshot() as tx:
        blocked = [unit for unit in tx.units.of(experiment_id) if unit.state is UnitState.BLOCKED]
    if blocked:
        raise SynthError(f"{blocked[0].unit} waits for you: {blocked[0].detail}")


def register(app: typer.Typer) -> None:
    """Add the command to ``synth``."""
    app.command(epilog=options.example("synth demo", "synth demo --seed 1 --batches 5 --home /tmp/synth-demo"))(demo)
