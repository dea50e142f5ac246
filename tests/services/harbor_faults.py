"""The fault drill in Harbor: the same tasks in boxes that fail in the same places, and what Harbor makes of them.

Only kinds that Harbor has a place for: its boxes here are directories without a limit on memory, shared by agent and
verifier, and its agent asks no model.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.services.fault_table import FAULTS, RETRIES, How, Where, kind_of, write
from tests.services.harbor_tool import run_job

_BOXES = '''

RULES = json.loads(Path(__file__).with_name("rules.json").read_text())


class Boxes(DirectoryEnvironment):
    """Fails as the rule of its task says: where, and whether only once."""

    @property
    def task(self):
        return (self.environment_dir / "drill").read_text()

    def fail(self, *where):
        wanted, always = RULES.get(self.task, ["", True])
        mark = Path(__file__).with_name(f"{self.task}.mark")
        if wanted in where and (always or not mark.exists()):
            mark.touch()
            raise RuntimeError("the drill broke this box")

    async def start(self, force_build):
        self.fail("actor create")
        await super().start(force_build)

    async def stop(self, delete):
        await super().stop(delete)
        self.fail("actor destroy")

    async def exec(self, command, *args, **kwargs):
        if "solve.sh" in command and "chmod" not in command:
            self.fail("actor exec")
        if "test.sh" in command and "chmod" not in command:
            self.fail("verifier exec")
        return await super().exec(command, *args, **kwargs)

    async def download_dir(self, source_dir, target_dir):
        if str(source_dir).startswith("/logs/verifier"):
            self.fail("verifier download")
        await super().download_dir(source_dir, target_dir)
'''
_PLACES = {
    ("actor", Where.CREATE),
    ("actor", Where.EXEC),
    ("actor", Where.DESTROY),
    ("verifier", Where.EXEC),
    ("verifier", Where.DOWNLOAD),
}


def has_place(kind: str) -> bool:
    """Say whether Harbor can be given this fault here."""
    fault = FAULTS[kind]
    if fault.model or "memory" in str(fault.settings):
        return False
    injection = fault.injection
    if injection is None:
        return True
    return (injection.role, injection.where) in _PLACES and injection.how not in {How.VANISHES, How.HANGS}


def run_peer(home: Path, names: Sequence[str]) -> dict[str, Any]:
    """Let Harbor's oracle run the tasks that it has a place for, and count what it makes of them."""
    chosen = [name for name in names if has_place(kind_of(name))]
    rules: dict[str, tuple[str, bool]] = {}
    (home / "harbor").mkdir(parents=True)
    for name in chosen:
        task = write(home / "tasks", name)
        text = (task / "task.toml").read_text().replace('environment_mode = "separate"\n', "")
        (task / "task.toml").write_text(text)
        injection = FAULTS[kind_of(name)].injection
        if injection is not None:
            rules[name] = (f"{injection.role} {injection.where}", injection.always)
    (home / "harbor" / "rules.json").write_text(json.dumps(rules))
    job = run_job(home / "tasks", home / "jobs", "oracle", at_once=8, retries=RETRIES, boxes="\nimport json\n" + _BOXES)
    return _counted(job)


def _counted(job: Path) -> dict[str, Any]:
    """Count; a trial without a reward is 0 in the mean while the job runs, and left out of it when it is over.

    Source: Harbor 0.26 ``job.py`` (``_on_trial_completed``, ``run``), ``metrics/base.py``.
    """
    graded: dict[str, list[float]] = {}
    without: Counter[str] = Counter()
    results = [json.loads(path.read_text()) for path in sorted(job.glob("*/result.json"))]
    for result in results:
        kind = kind_of(result["task_name"])
        if FAULTS[kind].expected.reward is not None:
            continue
        rewards: dict[str, float] | None = (result["verifier_result"] or {"rewards": None})["rewards"]
        if rewards is None:
            without[kind] += 1
        else:
            graded.setdefault(kind, []).append(rewards.get("reward", 0))
    n_graded, n_without = sum(map(len, graded.values())), without.total()
    return {
        "n_trials": len(results),
        "ungraded_by_the_table": n_graded + n_without,
        "graded_nevertheless": n_graded,
        "zero_in_the_running_mean": n_without,
        "rewards_of_graded": graded,
    }
