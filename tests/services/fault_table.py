"""The fault drill's table: what is done to a trial, and what the outcome table says must become of it.

Source: facts/worlds section 5.2 (outcomes), facts/peers B8 (the drill). Judges do not exist yet, so their garbage is
left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from domain.records.assessment import AssessmentOutcome
from domain.records.trial import TrialOutcome
from tests.fakes.platform import write_task

RETRIES = 2
"""Of a trial that infrastructure has cost: the drill's plans say so."""
MARK = "DRILL"
"""Variable of a task's environment that names the task to the boxes that fail for it."""


class Where(StrEnum):
    """Which operation of a box fails."""

    CREATE = "create"
    EXEC = "exec"
    DOWNLOAD = "download"
    DESTROY = "destroy"


class How(StrEnum):
    """What happens there."""

    FAILS = "fails"
    """An error, and the box lives on."""
    LOST = "lost"
    """The box is gone, and the operation says so."""
    VANISHES = "vanishes"
    """The box's directory is removed while a command runs; nothing is told."""
    HANGS = "hangs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A fault of the sandbox."""

    role: str
    """``actor`` or ``verifier``: whose box."""
    where: Where
    how: How = How.FAILS
    always: bool = True
    """False: the first time alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What must become of the trial; a reward exactly when it is scored."""

    outcome: TrialOutcome = TrialOutcome.COMPLETED
    reward: float | None = 1.0
    retries: int = 0
    tampered: bool = False

    @property
    def graded(self) -> AssessmentOutcome:
        """Scored or ungraded."""
        return AssessmentOutcome.UNGRADED if self.reward is None else AssessmentOutcome.SCORED


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind."""

    expected: Expected = field(default_factory=Expected)
    injection: Injection | None = None
    solution: str = "echo right > /app/out\n"
    """What the agent does."""
    test: str = "echo $n > /logs/verifier/reward.txt\n"
    """What the verifier does once it has looked: ``$n`` is 1 for right work."""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Lines of task.toml by table."""
    model: str = ""
    """How the provider fails: ``once``, ``always`` or ``later``; the agent is then a model's."""


_LOOK = 'if [ "$(cat /app/out 2>/dev/null)" = right ]; then n=1; else n=0; fi\n'
_RIGHT, _WRONG = "echo right > /app/out\n", "echo wrong > /app/out\n"
_TEXT, _JSON = "/logs/verifier/reward.txt", "/logs/verifier/reward.json"
_HOG = "python3 -S -c 'kept = bytearray(400 << 20)'"
_SMALL = {"environment": "memory_mb = 64"}
_INFRA = Expected(outcome=TrialOutcome.INFRA_ERROR, reward=None, retries=RETRIES)
_AGAIN = Expected(retries=1)
_UNGRADED = Expected(reward=None)
_ZERO = Expected(reward=0.0)


def _ended(outcome: TrialOutcome, *, right: bool) -> Expected:
    return Expected(outcome=outcome, reward=1.0 if right else 0.0)


def _box(role: str, where: Where, how: How = How.FAILS, *, always: bool = True) -> Injection:
    return Injection(role=role, where=where, how=how, always=always)


def _says(line: str) -> Fault:
    """Return a verifier that writes a reward which means nothing certain."""
    return Fault(test=line + "\n", expected=_UNGRADED)


_SANDBOX: dict[str, Fault] = {
    "box-not-made-once": Fault(injection=_box("actor", Where.CREATE, always=False), expected=_AGAIN),
    "box-not-made": Fault(injection=_box("actor", Where.CREATE), expected=_INFRA),
    "box-lost-once": Fault(injection=_box("actor", Where.EXEC, How.LOST, always=False), expected=_AGAIN),
    "box-lost": Fault(injection=_box("actor", Where.EXEC, How.LOST), expected=_INFRA),
    "box-vanishes-once": Fault(
        injection=_box("actor", Where.EXEC, How.VANISHES, always=False), solution=f"{_RIGHT}sleep 2\n", expected=_AGAIN
    ),
    "box-vanishes": Fault(
        injection=_box("actor", Where.EXEC, How.VANISHES), solution=f"{_RIGHT}sleep 2\n", expected=_INFRA
    ),
    "gathering-lost-once": Fault(injection=_box("actor", Where.DOWNLOAD, How.LOST, always=False), expected=_AGAIN),
    "gathering-lost": Fault(injection=_box("actor", Where.DOWNLOAD, How.LOST), expected=_INFRA),
    "copying-fails-once": Fault(injection=_box("actor", Where.DOWNLOAD, always=False)),
    "copying-fails": Fault(injection=_box("actor", Where.DOWNLOAD), expected=_INFRA),
    "teardown-fails": Fault(injection=_box("actor", Where.DESTROY)),
    "teardown-hangs": Fault(injection=_box("actor", Where.DESTROY, How.HANGS)),
}
_VERIFIER: dict[str, Fault] = {
    "verifier-not-made-once": Fault(injection=_box("verifier", Where.CREATE, always=False)),
    "verifier-not-made": Fault(injection=_box("verifier", Where.CREATE), expected=_UNGRADED),
    "verifier-lost-once": Fault(injection=_box("verifier", Where.EXEC, How.LOST, always=False)),
    "verifier-lost": Fault(injection=_box("verifier", Where.EXEC, How.LOST), expected=_UNGRADED),
    "verifier-vanishes": Fault(
        injection=_box("verifier", Where.EXEC, How.VANISHES),
        test=f"sleep 2; echo $n > {_TEXT}\n",
        expected=_UNGRADED,
    ),
    "verifier-read-fails-once": Fault(injection=_box("verifier", Where.DOWNLOAD, always=False)),
    "verifier-read-fails": Fault(injection=_box("verifier", Where.DOWNLOAD), expected=_UNGRADED),
    "verifier-teardown-fails": Fault(injection=_box("verifier", Where.DESTROY)),
    "verifier-teardown-hangs": Fault(injection=_box("verifier", Where.DESTROY, How.HANGS)),
    "verifier-crashes": Fault(test="exit 1\n", expected=_UNGRADED),
    "verifier-fails-with-reward": Fault(test=f"echo $n > {_TEXT}; exit 1\n"),
    "verifier-killed": Fault(test="kill -9 $$\n", expected=_UNGRADED),
    "verifier-over-memory": Fault(test=f"{_HOG} && echo 0 > {_TEXT}\n", settings=_SMALL, expected=_UNGRADED),
    "verifier-shrugs-memory": Fault(test=f"{_HOG}; echo 0 > {_TEXT}\n", settings=_SMALL, expected=_UNGRADED),
    "verifier-hangs": Fault(test="sleep 60\n", settings={"verifier": "timeout_sec = 2.0"}, expected=_UNGRADED),
    "verifier-hangs-late": Fault(
        test=f"echo 0 > {_TEXT}; sleep 60\n", settings={"verifier": "timeout_sec = 2.0"}, expected=_UNGRADED
    ),
}
_REWARDS: dict[str, Fault] = {
    "reward-nan": _says(f"echo nan > {_TEXT}"),
    "reward-nan-json": _says(f"echo '{{\"reward\": NaN}}' > {_JSON}"),
    "reward-infinite": _says(f"echo inf > {_TEXT}"),
    "reward-1e309": _says(f"echo '{{\"reward\": 1e309}}' > {_JSON}"),
    "reward-empty": _says(f": > {_TEXT}"),
    "reward-text": _says(f"echo passed > {_TEXT}"),
    "reward-bool": _says(f"echo '{{\"reward\": true}}' > {_JSON}"),
    "reward-no-headline": _says(f'echo \'{{"style": 0.5, "tests": 1}}\' > {_JSON}'),
    "reward-disagrees": Fault(test=f"echo '{{\"reward\": 0}}' > {_JSON}; echo 1 > {_TEXT}\n", expected=_ZERO),
}
_AGENT: dict[str, Fault] = {
    "right": Fault(),
    "wrong": Fault(solution=_WRONG, expected=_ZERO),
    "nothing": Fault(solution="true\n", expected=_ZERO),
    "agent-fails-right": Fault(solution=f"{_RIGHT}exit 3\n", expected=_ended(TrialOutcome.AGENT_ERROR, right=True)),
    "agent-fails-wrong": Fault(solution=f"{_WRONG}exit 3\n", expected=_ended(TrialOutcome.AGENT_ERROR, right=False)),
    "agent-late-right": Fault(
        solution=f"{_RIGHT}sleep 60\n",
        settings={"agent": "timeout_sec = 2.0"},
        expected=_ended(TrialOutcome.AGENT_TIMEOUT, right=True),
    ),
    "agent-late-wrong": Fault(
        solution=f"{_WRONG}sleep 60\n",
        settings={"agent": "timeout_sec = 2.0"},
        expected=_ended(TrialOutcome.AGENT_TIMEOUT, right=False),
    ),
    "agent-floods-right": Fault(
        solution=f"{_RIGHT}{_HOG}\n", settings=_SMALL, expected=_ended(TrialOutcome.AGENT_ERROR, right=True)
    ),
    "agent-floods-wrong": Fault(
        solution=f"{_WRONG}{_HOG}\n", settings=_SMALL, expected=_ended(TrialOutcome.AGENT_ERROR, right=False)
    ),
    "agent-plants-reward": Fault(
        solution=f"{_WRONG}mkdir -p /logs/verifier; echo 1 > {_TEXT}; echo 1 > /logs/verifier/reward\n",
        expected=_ZERO,
    ),
    "agent-leaves-pipe": Fault(solution=f"{_RIGHT}mkfifo /app/pipe\n", expected=Expected(reward=0.0, tampered=True)),
}
_PROVIDER: dict[str, Fault] = {
    "provider-well": Fault(model="well"),
    "provider-busy-once": Fault(model="once"),
    "provider-busy": Fault(model="always", expected=_INFRA),
    "provider-lost-later": Fault(model="later", expected=_INFRA),
}

FAULTS: dict[str, Fault] = {**_SANDBOX, **_VERIFIER, **_REWARDS, **_AGENT, **_PROVIDER}
"""By name: what may befall a trial. Kills of workers and doubled deliveries befall all of them."""


def spread(n: int) -> list[str]:
    """Return the names of ``n`` trials' tasks, ``<kind>-<number>``: every kind as often as any other."""
    kinds = list(FAULTS)
    return [f"{kinds[number % len(kinds)]}-{number:03d}" for number in range(n)]


def kind_of(task: str) -> str:
    """Return the kind of a task's name or mark."""
    return task.rpartition("/")[2].rpartition("-")[0]


def write(directory: Path, task: str) -> Path:
    """Write the task of one trial."""
    fault = FAULTS[kind_of(task)]
    path = write_task(directory, task, test=_LOOK + fault.test, solution=fault.solution)
    tables = {"verifier": "", "agent": "", "environment": "", **fault.settings}
    lines = [tables.pop("verifier"), *(f"[{name}]\n{text}" for name, text in tables.items())]
    lines.append(f'[environment.env]\n{MARK} = "{task}"')
    with (path / "task.toml").open("a") as file:
        file.write("\n".join(lines) + "\n")
    (path / "environment" / "drill").write_text(task)
    return path
