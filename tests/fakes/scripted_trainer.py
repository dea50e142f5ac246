"""A trainer whose answers about the fence are scripted: what happened to a step before the worker died."""

from domain.errors import TrainerError
from domain.ports import Contribution, ContributionResult, StepResult, StepStatus, TrainingRun
from domain.records.model import FileEntry, PolicyVersion
from domain.records.task import ObjectRef


class ScriptedTrainer:
    """The ``Trainer`` port; weights are the list of steps taken.

    ``dies_at`` makes the next ``optim_step`` raise before (``"before"``) or after (``"after"``) it took effect;
    ``knows`` False makes ``step_status`` unable to prove anything.
    """

    def __init__(self) -> None:
        self.steps: dict[str, StepResult] = {}
        self.held: dict[str, dict[str, ContributionResult]] = {}
        self.opened: list[tuple[FileEntry, ...]] = []
        self.dies_at: str | None = None
        self.knows = True
        self._run: TrainingRun | None = None

    async def open(self, run: TrainingRun, state: tuple[FileEntry, ...]) -> None:
        """Note the state and drop open updates."""
        self._run = run
        self.opened.append(state)
        self.held.clear()

    async def begin_update(self, run: str, update_id: str) -> tuple[str, ...]:
        """Open an update. Raises TrainerError when the run is not open."""
        if self._run is None or self._run.run != run:
            raise TrainerError(f"run {run} is not open")
        return tuple(self.held.setdefault(update_id, {}))

    async def forward_backward(self, run: str, contribution: Contribution) -> ContributionResult:
        """Hold a contribution once."""
        result = ContributionResult(key=contribution.key, loss_sum=1.0, n_tokens=2, metrics={"kl_v1": 0.5})
        return self.held[contribution.update_id].setdefault(contribution.key, result)

    async def optim_step(self, run: str, update_id: str, keys: tuple[str, ...]) -> StepResult:
        """Step, unless scripted to die."""
        dies_at, self.dies_at = self.dies_at, None
        if dies_at == "before":
            raise TrainerError("died before the step")
        if tuple(self.held[update_id]) != keys:
            raise TrainerError(f"held {tuple(self.held[update_id])}, asked for {keys}")
        number = len(self.steps) + 1
        self.steps[update_id] = StepResult(
            update_id=update_id,
            n_optimizer_steps=number,
            grad_norm=1.0,
            state=(FileEntry(path="state", content=ObjectRef(digest=f"{number:064x}", size_bytes=1)),),
            sampler=PolicyVersion(name=f"ckpt-{number:012x}", base="0" * 64, n_optimizer_steps=number),
        )
        if dies_at == "after":
            raise TrainerError("died after the step")
        return self.steps[update_id]

    async def step_status(self, run: str, update_id: str) -> tuple[StepStatus, StepResult | None]:
        """Answer from the record, or not at all."""
        if not self.knows:
            return StepStatus.UNKNOWN, None
        step = self.steps.get(update_id)
        return (StepStatus.APPLIED, step) if step else (StepStatus.NOT_APPLIED, None)

    async def abandon_update(self, run: str, update_id: str) -> None:
        """Drop an open update."""
        self.held.pop(update_id, None)
