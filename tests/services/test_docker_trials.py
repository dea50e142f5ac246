"""Trials of a task with its own image, from acceptance to the report, in containers."""

from pathlib import Path

import pytest

from adapters.sandboxes.docker import DockerSandbox
from adapters.sandboxes.memory import MemorySandbox
from adapters.stores.directory import DirectoryStore
from domain.records.experiment import ExperimentKind
from domain.records.names import parse_reference
from domain.records.profile import Plan, Profile
from domain.service.accept import Submission, accept
from domain.service.dispatch import dispatch
from domain.service.evaluate import evaluation
from domain.service.publish import publish_task_set
from domain.service.units import Stage, run_unit
from tests.compose_tool import compose_path
from tests.docker_engine import IMAGE, docker_url
from tests.fakes.platform import make_platform, write_task

_TEST = """said=$(cat /app/out 2>/dev/null)
if [ "$said" = "$(cat /srv/word)" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def _silent(_what: str, _done: int, _total: int) -> None:
    """Report no progress."""


@pytest.mark.timeout(240)
async def test_a_task_with_an_image_tells_oracle_from_nop(tmp_path: Path) -> None:
    """Agent and verifier each get a fresh container of the task's image; only the work goes from one to the other."""
    home = tmp_path / "home"
    docker = DockerSandbox(docker_url(), DirectoryStore(home / "store"), None)
    platform = make_platform(home, sandboxes={"docker": docker, "memory": MemorySandbox()})
    task = write_task(tmp_path / "tasks", "word", test=_TEST, solution="cat /srv/word > /app/out\n")
    (task / "environment" / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo secret-word > /srv/word\nWORKDIR /app\n")
    text = (task / "task.toml").read_text().replace("host_runnable = true\n", "")
    (task / "task.toml").write_text(text + '[environment]\nnetwork_mode = "no-network"\n')
    publish_task_set(platform, parse_reference("team/words@v1", field="test"), str(tmp_path / "tasks"))
    means: dict[str, float | None] = {}
    for engine in ("oracle", "nop"):
        accepted = accept(
            platform,
            Submission(
                kind=ExperimentKind.EVALUATION,
                task_set="team/words@v1",
                actor=Profile(name=engine, engine=engine),
                plan=Plan(attempts=2, concurrency=2, sandbox="docker"),
            ),
        )
        for launch in dispatch(platform).launches:
            stages = frozenset({Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS})
            result = await run_unit(platform, launch.unit, "worker", stages, _silent)
            assert all(trial.sandbox == "docker" for trial in result.trials.trials)
            assert len({trial.made_from["image"] for trial in result.trials.trials}) == 1
        means[engine] = evaluation(platform, accepted.experiment.experiment_id).mean.value
    assert means == {"oracle": 1.0, "nop": 0.0}


_COMPOSE = f"""
services:
  main:
    image: {IMAGE}
    working_dir: /app
    depends_on: {{ledger: {{condition: service_healthy}}}}
  ledger:
    image: {IMAGE}
    volumes: ["./ledger.py:/ledger.py:ro"]
    command: ["python3", "/ledger.py"]
    healthcheck: {{test: ["CMD", "test", "-e", "/ready"], interval: 0.2s, retries: 50}}
"""
_LEDGER = """import http.server, pathlib
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        sent = self.rfile.read(int(self.headers["content-length"]))
        with open("/entries", "ab") as entries:
            entries.write(sent)
        self.send_response(204)
        self.end_headers()
server = http.server.HTTPServer(("", 80), Handler)
pathlib.Path("/ready").touch()
server.serve_forever()
"""
_PAY = "python3 -c \"import urllib.request as u; u.urlopen('http://ledger/', data=b'paid 7\\\\n')\"\n"
_TABLES = """artifacts = [{source = "/audit", service = "ledger"}]

[environment]
network_mode = "no-network"

[[verifier.collect]]
command = "cp /entries /audit"
service = "ledger"
"""


@pytest.mark.timeout(240)
async def test_a_task_with_a_service_is_graded_by_what_the_service_saw(tmp_path: Path) -> None:
    """The effect on another service is collected by a hook there, and decides; what an agent only says does not."""
    home = tmp_path / "home"
    docker = DockerSandbox(docker_url(), DirectoryStore(home / "store"), None, compose=compose_path())
    platform = make_platform(home, sandboxes={"docker": docker, "memory": MemorySandbox()})
    check = 'grep -q "paid 7" /audit && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n'
    task = write_task(tmp_path / "tasks", "ledger", test=check, solution=_PAY)
    (task / "environment" / "docker-compose.yaml").write_text(_COMPOSE)
    (task / "environment" / "ledger.py").write_text(_LEDGER)
    (task / "environment" / "Dockerfile").unlink(missing_ok=True)
    text = (task / "task.toml").read_text().replace("host_runnable = true\n", "")
    (task / "task.toml").write_text(_TABLES.partition("\n")[0] + "\n" + text + _TABLES.partition("\n")[2])
    publish_task_set(platform, parse_reference("team/ledger@v1", field="test"), str(tmp_path / "tasks"))
    means: dict[str, float | None] = {}
    for engine in ("oracle", "nop"):
        submission = Submission(
            kind=ExperimentKind.EVALUATION,
            task_set="team/ledger@v1",
            actor=Profile(name=engine, engine=engine),
            plan=Plan(attempts=1, sandbox="docker"),
        )
        accepted = accept(platform, submission)
        for launch in dispatch(platform).launches:
            stages = frozenset({Stage.TRIALS, Stage.ASSESSMENTS, Stage.QUALIFIED_GROUPS})
            await run_unit(platform, launch.unit, "worker", stages, _silent)
        means[engine] = evaluation(platform, accepted.experiment.experiment_id).mean.value
    assert means == {"oracle": 1.0, "nop": 0.0}
