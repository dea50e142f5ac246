"""An engine that runs the task's own solution: the check that a task can be solved and its verifier agrees."""

from adapters.engines.nop import refuse_unused
from domain.errors import TaskError
from domain.ports import Command, Launch, ModelBinding, Upload
from domain.records.archive import read_file, subtree
from domain.records.profile import Profile
from domain.records.task import Task

_SCRIPT = "solution/solve.sh"


class OracleEngine:
    """Puts ``solution/`` into ``/solution`` and runs ``solve.sh`` there.

    Source: Harbor 0.26 ``agents/oracle.py``; the solution is the one thing that a trial's box otherwise never holds.
    """

    @property
    def name(self) -> str:
        """``oracle``."""
        return "oracle"

    @property
    def needs_model(self) -> bool:
        """Never."""
        return False

    def check(self, profile: Profile) -> None:
        """Refuse what would have no effect.

        Raises:
            ConfigurationError: naming the field.
        """
        refuse_unused(profile, self.name)

    def launch(self, profile: Profile, task: Task, archive: bytes, binding: ModelBinding | None) -> Launch:
        """Return the upload of the solution and the command that runs it, in the task's working directory.

        Raises:
            TaskError: the task has no solution.
        """
        del binding
        if read_file(archive, _SCRIPT) is None:
            raise TaskError(f"{task.name}: {_SCRIPT}: missing", hint="the oracle needs the task's own solution")
        command = Command(
            argv=("bash", "/solution/solve.sh"),
            cwd=profile.workdir or task.environment.workdir,
            env={"DEBIAN_FRONTEND": "noninteractive", **task.environment.env, **task.solution_env},
            timeout_s=task.agent.timeout_s or Command(argv=("true",)).timeout_s,
            user=task.agent.user,
        )
        return Launch(
            uploads=(Upload(tar=subtree(archive, "solution"), target="/solution"),),
            commands=(command,),
        )
