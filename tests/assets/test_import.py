"""An imported job in the graph: nothing of it is launched, and a regrade of it runs like any other."""

import json
from pathlib import Path

from adapters.benchmarks.harbor_job import read_job
from adapters.evidence_codec import encode_trial
from domain.records.names import parse_reference
from domain.service.evaluate import evaluation
from domain.service.import_trials import Importer, import_job
from domain.service.regrade import accept_regrade
from sensors.dispatcher import dispatcher
from tests.assets.graph import Graph, checks_of


def write_job(directory: Path, task: str) -> Path:
    """Write a job of one trial as Harbor lays it out."""
    trial = directory / "job" / "one__abcdefg"
    result = {
        "task_name": task,
        "trial_name": trial.name,
        "task_checksum": "0" * 64,
        "config": {},
        "agent_info": {"name": "claude-code", "version": "2", "model_info": {"name": "m", "provider": "p"}},
        "agent_result": {"metadata": {"synth": {"whole": True}}},
        "verifier_result": {"rewards": {"reward": 0.25}},
        "verifier_environment_mode": "separate",
        "started_at": "2026-01-01T00:00:00Z",
        "finished_at": "2026-01-01T00:01:00Z",
    }
    job = {"started_at": "2026-01-01T00:00:00", "n_total_trials": 1}
    manifest = [{"source": "/app/x", "destination": "artifacts/app/x", "status": "ok"}]
    documents = {
        trial / "result.json": result,
        trial / "artifacts" / "manifest.json": manifest,
        directory / "job" / "config.json": {"job_name": "job"},
        directory / "job" / "result.json": job,
    }
    (trial / "artifacts" / "app").mkdir(parents=True)
    (trial / "artifacts" / "app" / "x").write_text("1")
    for path, document in documents.items():
        path.write_text(json.dumps(document))
    return directory / "job"


def test_a_regrade_of_imported_trials_runs_in_the_graph(graph: Graph, tmp_path: Path) -> None:
    """Its unit is no run's product, and still a partition that a regrade reads."""
    platform = graph.platform
    # A lock that is missing names no task, so the name alone decides; the digest of another kind does not.
    importer = Importer(platform=platform, task_digests=lambda _: frozenset(), encode=encode_trial)
    reference = parse_reference("team/small@v1", field="test")
    imported = import_job(importer, read_job(write_job(tmp_path, "t/a1")), reference, sandbox="memory", actor="")
    assert not graph.tick(dispatcher).run_requests
    identity = imported.experiment.experiment_id
    assert evaluation(platform, identity).mean.value == 0.25
    regrade = accept_regrade(platform, identity).experiment.experiment_id
    runs = list(graph.drain(dispatcher))
    assert all(run.success for run in runs)
    assert all(checks_of(runs[0]).values())
    assert evaluation(platform, regrade).mean.value == 1.0
