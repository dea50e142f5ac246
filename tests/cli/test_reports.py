"""Reports as people see them: conversations, transcripts, and a training's page in a real browser."""

import os
import shutil
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from adapters.reports.charts import apart
from adapters.reports.content import ExperimentContent, LabelledEvaluation
from adapters.reports.conversation import turns_of
from adapters.reports.experiment_page import experiment_page, transcripts_worth_reading
from adapters.reports.formats import visible
from adapters.reports.transcript_page import transcript_page
from adapters.reports.transcript_text import transcript_text
from cli import terminal
from cli.formats import body, plain
from domain.service.inspection import Transcript
from tests.cli import report_records as records


def test_a_conversation_reads_in_order() -> None:
    """System, user, assistant with its call, tool output, answer; each model call with its facts."""
    turns = turns_of(records.interactions())
    assert [turn.role for turn in turns] == ["system", "user", "assistant", "tool", "assistant"]
    call = turns[2]
    assert [item.text for item in call.calls] == ["echo <b>hello</b> > out.txt"]
    assert call.facts is not None
    assert call.facts.n_sampled_tokens == 3
    assert call.facts.logprob_mean == pytest.approx(-0.5)
    assert turns[3].text == "ok"


def test_a_rewritten_history_and_delegated_agents_show() -> None:
    """A new segment is announced, and each agent has a conversation of its own."""
    first, second = records.interactions()
    rewritten = replace(second, segment=1, request={"system": "Short.", "messages": []})
    child = replace(first, agent="child-1", sequence=2)
    turns = turns_of((first, rewritten, child))
    assert [turn.agent for turn in turns] == ["main"] * 5 + ["child-1"] * 3
    assert [turn.opens_segment for turn in turns[:5]] == [False, False, False, True, False]


def test_a_transcript_as_text_and_as_a_page() -> None:
    """Both carry calls, tokens and reward; the page escapes what the model wrote."""
    found = Transcript(
        trial=records.trial("t", 0), assessments=(records.assessment("t", 1.0),), interactions=records.interactions()
    )
    text = transcript_text(found).plain
    page = transcript_page(found, home="../index.html")
    for said in ("echo <b>hello</b> > out.txt", "mean logprob −0.500", "reward 1.000"):
        assert said in text
    assert "<b>hello</b>" not in page
    assert "echo &lt;b&gt;hello&lt;/b&gt; &gt; out.txt" in page
    assert 'href="../index.html"' in page


def test_transcripts_are_spread_over_tasks() -> None:
    """The first attempt at each task comes before the second at any."""
    trials = [(records.trial(f"t{task}{attempt}", task, attempt), None) for task in range(3) for attempt in range(2)]
    chosen = [trial.trial_id for trial in transcripts_worth_reading(trials, 4)]
    assert chosen == ["t00", "t10", "t20", "t01"]


def test_an_unscored_run_has_a_report_without_numbers() -> None:
    """What was never assessed shows dashes, not zeros."""
    page = experiment_page(records.unscored())
    assert "of 2 planned" in page
    assert 'id="curve"' not in page
    assert 'id="estimates"' not in page


@pytest.fixture
def browser_page() -> Iterator[Page]:
    """Return a page of a real Chromium; without one this skips on a laptop and fails in CI."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        if os.environ.get("CI"):  # noqa: TID251 - tests may
            pytest.fail("chromium is missing")
        pytest.skip("chromium is missing")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser.new_page(viewport={"width": 1200, "height": 900})
        browser.close()


def _content() -> ExperimentContent:
    return records.training(
        base=LabelledEvaluation(label="base", batch=0, report=records.report(0.25), trials=records.trials(0.25)),
        last=LabelledEvaluation(label="ckpt-0", batch=2, report=records.report(0.75), trials=records.trials(0.75)),
    )


def test_a_training_report_in_a_browser(browser_page: Page, tmp_path: Path) -> None:
    """It needs nothing but itself, draws its chart, and its squares lead to transcripts."""
    path = tmp_path / "index.html"
    path.write_text(experiment_page(_content()), encoding="utf-8")
    asked: list[str] = []
    problems: list[str] = []
    browser_page.on("request", lambda request: asked.append(request.url))
    browser_page.on("pageerror", lambda error: problems.append(str(error)))
    browser_page.goto(path.as_uri())
    outside = [url for url in asked if not url.startswith(("file:", "data:"))]
    assert (outside, problems) == ([], [])
    assert browser_page.locator("#curve img").evaluate("image => image.naturalWidth") > 1000
    assert browser_page.locator(".figure .value").first.inner_text() == "+0.500"
    lines = "figure => figure.getClientRects()[0].height / parseFloat(getComputedStyle(figure).lineHeight)"
    for value in browser_page.locator(".figure .value").all():
        assert value.evaluate(lines) == pytest.approx(1, abs=0.2), "a figure stands on one line"
    assert browser_page.locator("#batches tr").count() == 3
    assert browser_page.locator("#families tr").count() == 3
    assert browser_page.locator("#tasks a.dot").first.get_attribute("href") == "transcripts/0.25-0-0.html"
    wide = browser_page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, "nothing runs over the edge"


@pytest.mark.parametrize(
    ("batches", "labelled"),
    [
        ([0], {0}),
        ([0, 1], {0, 1}),
        ([0, 10, 20, 30], {0, 10, 20, 30}),
        (list(range(0, 31, 2)), {0, 6, 10, 14, 18, 22, 26, 30}),
    ],
)
def test_labels_of_a_chart_stand_apart(batches: list[int], labelled: set[int]) -> None:
    """The first and the last evaluation always have theirs; between them as many as do not overlap."""
    assert apart(batches) == labelled


HOSTILE = "\x1b]0;title\x07\x1b[2J[bold]done[/] \\[red]\\ [/nothing] \u202etxt.exe\u2066 \x9b31m\r\b\u2028 é 文\n\tend"


def test_what_an_agent_said_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Escapes, direction marks and markup of an agent's words are shown, not obeyed; letters stay letters."""
    shown = visible(HOSTILE)
    assert not {char for char in shown if unicodedata.category(char) in {"Cc", "Cf", "Zl"}} - {"\n", "\t"}
    assert "é 文\n\tend" in shown
    assert "\\x1b]0;title\\x07" in shown
    terminal.say(f"[bold]note[/] {plain(HOSTILE)}")
    terminal.show_table(("detail",), [(plain(HOSTILE),)])
    terminal.say(body({"detail": HOSTILE}))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.count("[bold]done[/] \\[red]\\ [/nothing]") == 3
    hostile = replace(records.trial("t", 0), detail=HOSTILE, task_name="a/[b]\x1b")
    found = Transcript(
        trial=hostile,
        assessments=(replace(records.assessment("t", 1.0), reason=HOSTILE),),
        interactions=records.interactions(),
    )
    assert "\x1b" not in transcript_text(found).plain
