"""Waiting until a box is ready, with Docker's meaning of a healthcheck."""

from domain.ports import Box, Clock, Command
from domain.records.task import Healthcheck, Task


async def find_illness(box: Box, clock: Clock, task: Task, check: Healthcheck | None) -> str:
    """Return why the box is not ready; empty once the command has succeeded.

    Failures within the start period do not count; after it, ``retries`` of them in a row end the wait.
    Source: Harbor 0.26 ``environments/base.py``, ``run_healthcheck``.

    Args:
        box: where it runs.
        clock: for the periods.
        task: with its variables filled; gives user, directory and variables.
        check: None: ready at once.

    Raises:
        SandboxError: the box itself failed.
    """
    if check is None:
        return ""
    ends_s = clock.monotonic_s() + check.start_period_s
    n_failures = 0
    while True:
        in_start = clock.monotonic_s() < ends_s
        result = await box.exec(
            Command(
                argv=("bash", "-c", check.command),
                cwd=task.environment.workdir,
                env=task.environment.env,
                timeout_s=check.timeout_s,
                user=task.agent.user,
            )
        )
        if result.exit_code == 0:
            return ""
        n_failures += 0 if in_start else 1
        if n_failures >= check.retries:
            how = "timed out" if result.timed_out else f"ended with {result.exit_code}"
            return f"healthcheck {check.command!r} failed {n_failures} times, the last one {how}"
        await clock.sleep(check.start_interval_s if in_start else check.interval_s)
