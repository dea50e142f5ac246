"""What people see in a browser: the graph, a partition, the Launchpad, a report and its transcripts."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from cli.main import main
from cli.readiness import free_port
from domain.records.experiment import ExperimentKind, ExperimentState
from resources.wiring import settings_from_environment
from tests.services.browser import COMMANDS, LOAD_MS, TASK_SET, TASKS, Stage, browser_page, need_chromium, oracle, stage

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

_GRAPH = json.loads((Path(__file__).resolve().parents[1] / "golden" / "asset_graph.json").read_text(encoding="utf-8"))
_KEY = "typed-into-the-launchpad"
_CONFIG = f"""ops:
  submit_experiment:
    config:
      kind: evaluation
      dataset: {TASK_SET}
      profile: {{name: oracle, engine: oracle}}
      plan: {{attempts: 1, seed: 7}}
      idempotency_key: {_KEY}
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Return what one ``synth up`` has made; all pages are read from it."""
    need_chromium()
    scratch = tmp_path_factory.mktemp("ui")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYNTH_HOME", str(scratch / "home"))
        patch.setenv("SYNTH_UI_PORT", str(free_port("127.0.0.1", 24300)))
        patch.delenv("SYNTH_LEDGER_URL", raising=False)
        with stage(settings_from_environment(), scratch) as staged:
            yield staged


@pytest.fixture
def page() -> Iterator[Page]:
    """Return an empty page of a real browser."""
    with browser_page() as opened:
        yield opened


def test_the_graph_shows_every_asset(seen: Stage, page: Page) -> None:
    """The global lineage names all assets, once its groups are opened."""
    page.goto(f"{seen.running.ui}/asset-groups")
    expect(page.get_by_text("Materialize all")).to_be_visible(timeout=LOAD_MS)
    expect(page.get_by_text("experiments", exact=True).last).to_be_visible(timeout=LOAD_MS)
    page.keyboard.press("Alt+e")  # Dagster's key for "expand all groups"
    for asset in _GRAPH["assets"]:
        expect(page.get_by_text(asset, exact=True).last).to_be_visible(timeout=LOAD_MS)
    page.screenshot(path=seen.shots / "graph.png")


def test_partitions_tell_counts_means_and_manifests(seen: Stage, page: Page) -> None:
    """Trials and assessments of a unit say how many, how good and where the manifest is."""
    unit = seen.unit(seen.evaluation)
    for asset, words in {
        "trials": ("n_completed", "n_infra_error", "2 completed", "manifest_sha256", "synth run transcript"),
        "assessments": ("1.000 [", "n = 2 tasks, 4 attempts", "n_scored", "n_ungraded", "manifest_sha256"),
    }.items():
        page.goto(f"{seen.running.ui}/assets/{asset}?view=partitions&partition={quote(unit)}")
        for word in words:
            expect(page.get_by_text(word).first).to_be_visible(timeout=LOAD_MS)
        page.screenshot(path=seen.shots / f"{asset}.png")
    page.goto(f"{seen.running.ui}/assets/checkpoints?view=partitions&partition={quote(seen.unit(seen.training))}")
    for word in ("update_state", "n_contributions", "batches"):
        expect(page.get_by_text(word, exact=True).first).to_be_visible(timeout=LOAD_MS)
    page.screenshot(path=seen.shots / "checkpoints.png")


def test_an_evaluation_has_a_page(seen: Stage, page: Page) -> None:
    """The numbers of a finished experiment stand on the partition of ``evaluations``, with a plot."""
    name = seen.evaluation.experiment_id
    page.goto(f"{seen.running.ui}/assets/evaluations?view=partitions&partition={quote(name)}")
    for word in ("headline", "pass_at_k", "families", "tasks", f"synth run show {name}"):
        expect(page.get_by_text(word).first).to_be_visible(timeout=LOAD_MS)
    page.screenshot(path=seen.shots / "evaluations.png")
    page.get_by_text("[Show Markdown]").first.click()
    plot = page.locator("img[alt='mean reward by family']")
    expect(plot).to_be_visible(timeout=LOAD_MS)
    assert plot.evaluate("image => image.naturalWidth") > 100, "the browser refused the plot"
    page.screenshot(path=seen.shots / "plot.png")


def test_the_launchpad_and_the_command_line_accept_the_same(
    seen: Stage, page: Page, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is typed into the Launchpad runs; the command line with the same key and documents finds it."""
    before = {item.experiment_id for item in seen.known()}
    page.goto(f"{seen.running.ui}/locations/synth/jobs/submit_experiment_job/playground")
    editor = page.locator(".CodeMirror").first
    expect(editor).to_contain_text("submit_experiment", timeout=LOAD_MS)
    editor.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(_CONFIG)
    launch = page.get_by_role("button", name="Launch Run")
    expect(launch).to_be_enabled(timeout=LOAD_MS)
    page.screenshot(path=seen.shots / "launchpad.png")
    launch.click()
    page.wait_for_url("**/runs/*", timeout=LOAD_MS)
    expect(page.get_by_text("Success", exact=True).first).to_be_visible(timeout=LOAD_MS)
    page.screenshot(path=seen.shots / "run.png")
    (name,) = {item.experiment_id for item in seen.known()} - before
    ended = seen.ended(name)
    assert (ended.state, ended.spec.kind) == (ExperimentState.SUCCEEDED, ExperimentKind.EVALUATION)
    profile, plan = oracle(), {"attempts": 1, "seed": 7}
    (tmp_path / "agent.json").write_text(json.dumps({"name": profile.name, "engine": profile.engine}))
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    documents = ["--actor", f"@{tmp_path / 'agent.json'}", "--plan", f"@{tmp_path / 'plan.json'}"]
    capsys.readouterr()
    assert main(["run", "start", "--dataset", TASK_SET, *documents, "--idempotency-key", _KEY, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["experiment"]["experiment_id"], answer["created"]) == (name, False)


def test_a_report_leads_to_transcripts(seen: Stage, page: Page) -> None:
    """The report of a training shows its batch; a transcript shows prompt, tool call, result and reward."""
    page.goto(seen.report.as_uri())
    expect(page.get_by_role("heading", name=f"Training of {TASK_SET}")).to_be_visible()
    page.screenshot(path=seen.shots / "report.png")
    page.locator("a.dot.full").first.click()  # a paid attempt: its call is known
    expect(page.get_by_role("heading", name="Reward")).to_contain_text("1.000")
    expect(page.get_by_text("Solve the task with bash.").first).to_be_visible()
    expect(page.get_by_text(f"Do {TASKS[0]}.").first).to_be_visible()
    expect(page.locator("pre.call").first).to_contain_text(f"bash> {COMMANDS[0]}")
    page.screenshot(path=seen.shots / "transcript.png")
    page.get_by_role("link", name="Report").click()
    expect(page.get_by_role("heading", name=f"Training of {TASK_SET}")).to_be_visible()
