"""What a long command says while it works, and how long it says that it took."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli import terminal
from cli.demo_summary import DemoResult, Gain, Side, show
from cli.progress_lines import ProgressLines
from cli.work_log import WorkLog, worked_ms


@dataclass(slots=True)
class Clock:
    """A clock that stands still unless it is told to go on."""

    now: float = 1000.0

    def s(self) -> float:
        """Seconds."""
        return self.now

    def ms(self) -> int:
        """Milliseconds."""
        return round(self.now * 1000)


def test_lines_begin_go_on_and_end() -> None:
    """A line at once, one every 15 s with what is left, and one at the end however often the end is reported."""
    said: list[str] = []
    clock = Clock()
    report = ProgressLines(say=said.append, monotonic_s=clock.s)
    for done in range(41):
        report("steps", done, 40)
        clock.now += 1
    report("steps", 40, 40)
    assert said == [
        "  steps: 0 of 40",
        "  steps: 15 of 40, 15.0 s elapsed, about 25.0 s left",
        "  steps: 30 of 40, 30.0 s elapsed, about 10.0 s left",
        "  steps: all 40, 40.0 s elapsed",
    ]


def test_what_was_done_before_is_no_speed() -> None:
    """A resumed stage begins in the middle."""
    said: list[str] = []
    clock = Clock()
    report = ProgressLines(say=said.append, monotonic_s=clock.s)
    for done in (20, 20, 30):
        report("steps", done, 40)
        clock.now += 15
    assert said[1:] == ["  steps: 20 of 40, 15.0 s elapsed", "  steps: 30 of 40, 30.0 s elapsed, about 30.0 s left"]


def test_a_pipe_gets_lines_and_a_program_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Bars need a terminal; ``--json`` wants silence."""
    for shown in (True, False):
        with terminal.bars(shown=shown) as progress:
            progress("trials", 0, 2)
            progress("trials", 2, 2)
        out, err = capsys.readouterr()
        assert (out, err.splitlines()[:1]) == ("", ["  trials: 0 of 2"] if shown else [])


def test_work_is_counted_once_and_pauses_not_at_all() -> None:
    """Spans overlap and lie close to each other; an hour between them is no work."""
    minute = 60_000
    assert worked_ms([]) == 0
    assert worked_ms([(minute, 3 * minute), (2 * minute, 4 * minute), (2 * minute, 2 * minute)]) == 3 * minute
    assert worked_ms([(10 * minute, 11 * minute), (minute, 2 * minute)]) == 2 * minute
    assert worked_ms([(minute, 2 * minute), (2 * minute + 30_000, 3 * minute)]) == 2 * minute


def test_a_killed_call_has_its_time_counted(tmp_path: Path) -> None:
    """What the call noted before it died is there for the next one; a torn file is no reason to fail."""
    clock = Clock()
    log = WorkLog(path=tmp_path / "demo" / "work.json", now_ms=clock.ms)
    clock.now += 100
    log.beat()
    clock.now += 1000
    again = WorkLog(path=log.path, now_ms=clock.ms)
    clock.now += 10
    assert worked_ms(again.spans) == 110_000
    assert json.loads(log.path.read_text())[0] == [1_000_000, 1_100_000]
    log.path.write_text("[[1")
    assert WorkLog(path=log.path, now_ms=clock.ms).earlier == ()


def test_a_resumed_demo_names_both_times(capsys: pytest.CaptureFixture[str]) -> None:
    """The time of one call alone would look like the time of the whole job."""
    side = Side(experiment_id="e", policy="p", mean=0.5, low=0.4, high=0.6, n_tasks=4, n_attempts=16, n_ungraded=0)
    gain = Gain(value=0.1, low=0.0, high=0.2, n_tasks=4, p_value=0.5, method="t")
    for wall_s, said in ((64.0, "8 min 39 s of work (1 min 04 s of it in this call)"), (519.0, "8 min 39 s of work,")):
        result = DemoResult(
            seed=0,
            batches=1,
            base=side,
            trained=side,
            gain=gain,
            gain_over_tasks=gain,
            n_ungraded=0,
            wall_s=wall_s,
            worked_s=519.0,
            stages_s={},
            peak_rss_bytes=1,
            ui="u",
            report="r",
            experiments={"training": "t"},
        )
        show(result, None)
        assert said in capsys.readouterr().out
