"""Killed workers leave nothing: what they had is gone once the janitor has come by, and nothing else is touched."""

from pathlib import Path

import pytest

from tests.docker_engine import docker_url
from tests.services.leak_drill import LeakPlan, run_leaks, summary


@pytest.mark.timeout(240)
@pytest.mark.parametrize("box", ["local", "docker"])
async def test_nothing_of_a_killed_worker_is_left(box: str, tmp_path: Path) -> None:
    """Processes, directories, control groups, containers and tokens; a lease outlives its worker by twelve seconds."""
    url = docker_url() if box == "docker" else ""
    plan = LeakPlan(box=box, docker_url=url, kills=3, at_once=3, within_s=4.0, sweep_s=5.0, wait_s=30.0)
    found = await run_leaks(tmp_path, plan)
    assert found.kills > 0
    assert found.had["tokens"] + found.had["processes"] > 0
    mine = {name: n for name, n in found.left.items() if name not in found.of_the_engine}
    assert not mine, summary(found)
    assert all(found.others.values()), found.others
