"""Images of tasks built once, pushed to a real registry, and named by digest: what a cluster can start from."""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from adapters.benchmarks.harbor import HarborTaskSource
from adapters.benchmarks.pinned_images import pin_images
from domain.errors import SandboxError, TaskError
from tests.cli.synth import Synth
from tests.docker_engine import IMAGE, client, docker_url
from tests.fakes.platform import write_task

_READY_S = 20.0
_CONFIG: dict[str, Any] = {"version": "0.1", "storage": {"inmemory": {}}, "log": {"level": "error"}}
_TEST = """said=$(cat /app/out 2>/dev/null)
if [ "$said" = "$(cat /srv/word)" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def silent(_what: str, _done: int, _total: int) -> None:
    """Report no progress."""


@pytest.fixture
def registry(tmp_path: Path) -> Generator[str]:
    """Debian's registry on loopback, which engines take without TLS; its address."""
    program = shutil.which("docker-registry")
    if program is None:
        if os.environ.get("CI"):  # noqa: TID251 - says whether a missing part may be skipped
            pytest.fail("docker-registry is missing")
        pytest.skip("docker-registry is missing")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = tmp_path / "registry.json"
    config.write_text(json.dumps({**_CONFIG, "http": {"addr": address}}))
    with (tmp_path / "registry.log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log)
    try:
        _wait(f"http://{address}/v2/")
        yield address
    finally:
        process.terminate()
        process.wait(10)


def _wait(url: str) -> None:
    deadline_s = time.monotonic() + _READY_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=1).close()  # noqa: S310 - our own registry
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)
        else:
            return


def word_task(directory: Path, word: str) -> Path:
    """Write a task whose image holds what its test asks for."""
    task = write_task(directory, "word", test=_TEST, solution="cat /srv/word > /app/out\n")
    (task / "environment" / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo {word} > /srv/word\nWORKDIR /app\n")
    text = (task / "task.toml").read_text().replace("host_runnable = true\n", "")
    (task / "task.toml").write_text(f'{text}# a comment stays\n[environment]\nnetwork_mode = "no-network"\ncpus = 1\n')
    return task


@pytest.mark.timeout(240)
def test_a_task_set_is_built_pushed_pinned_and_run_from_the_registry(
    synth: Synth, tmp_path: Path, registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published task names the digest; once nothing is left on the machine, the pulled image scores 1."""
    url = docker_url()
    monkeypatch.setenv("SYNTH_DOCKER_HOST", url)
    word_task(tmp_path / "tasks", f"word-{registry}")
    built = synth.json(
        "task-set", "build", str(tmp_path / "tasks"), "team/words@v1", "--push", f"{registry}/team", "--out", "pinned"
    )
    (image,) = built["images"].values()
    assert image.startswith(f"{registry}/team/word@sha256:")
    text = Path("pinned/word/task.toml").read_text()
    assert f'docker_image = "{image}"' in text
    assert "# a comment stays" in text
    assert "docker_image" not in (tmp_path / "tasks" / "word" / "task.toml").read_text()
    engine = client(url)
    for name in [tag for item in engine.images(all=True) for tag in item["RepoTags"] or () if "/team/word" in tag]:
        engine.remove_image(name, force=True)
    ours = [item["Id"] for item in engine.images(filters={"label": "synth.image"}) if _is_of(engine, item["Id"], image)]
    for found in ours:
        engine.remove_image(found, force=True)
    Path("oracle.json").write_text(json.dumps({"name": "oracle", "engine": "oracle"}))
    run = synth.json("agent", "run", "@oracle.json", "--task", "pinned/word", "--sandbox", "docker")
    assert run["assessment"]["reward"] == 1.0


def _is_of(engine: Any, image_id: str, name: str) -> bool:
    said = engine.inspect_image(image_id)
    return name in (said.get("RepoDigests") or ())


def test_each_dockerfile_gets_its_own_image_and_what_has_one_keeps_it(tmp_path: Path) -> None:
    """Agent and verifier, a verifier with nothing said about its environment, steps; nothing else changes."""
    published: list[str] = []

    def publish(context: bytes, name: str) -> str:
        assert context
        published.append(name)
        return f"{name.rpartition(':')[0]}@sha256:{len(published):064d}"

    task = word_task(tmp_path / "tasks", "x")
    (task / "tests" / "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY . /tests\n")
    kept = write_task(tmp_path / "tasks", "kept")
    (kept / "task.toml").write_text((kept / "task.toml").read_text() + '[environment]\ndocker_image = "a:1"\n')
    before = [task for task, _ in HarborTaskSource().read(str(tmp_path / "tasks"), host_runnable=False)]
    seen: list[tuple[str, int, int]] = []

    def note(what: str, done: int, total: int) -> None:
        seen.append((what, done, total))

    images = pin_images(tmp_path / "tasks", tmp_path / "out", "reg.example/a/", publish, note)
    assert sorted(images) == ["word/environment", "word/tests"]
    assert [name.rpartition(":")[0] for name in published] == ["reg.example/a/word", "reg.example/a/word-tests"]
    assert seen == [("image", 1, 2), ("image", 2, 2)]
    first, second = (task for task, _ in HarborTaskSource().read(str(tmp_path / "out"), host_runnable=False))
    assert first == before[0]
    assert second.environment.docker_image == images["word/environment"]
    assert second.verifier_environment is not None
    assert second.verifier_environment.docker_image == images["word/tests"]
    assert second.bundles_tests
    was = before[1].verifier_environment
    assert was is not None
    assert second.verifier_environment.cpus == was.cpus == 1
    assert (second.verifier_network, second.agent_network) == (before[1].verifier_network, before[1].agent_network)


def test_what_cannot_be_pinned_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    """Compose services, a directory that is there, no task; and a build that fails names its context."""

    def publish(context: bytes, name: str) -> str:
        del context
        raise SandboxError(f"push {name}: refused")

    task = word_task(tmp_path / "tasks", "x")
    with pytest.raises(SandboxError, match="reg/word"):
        pin_images(tmp_path / "tasks", tmp_path / "out", "reg", publish, silent)
    with pytest.raises(TaskError, match="is there already"):
        pin_images(tmp_path / "tasks", tmp_path / "out", "reg", publish, silent)
    with pytest.raises(TaskError, match="holds no task"):
        pin_images(task / "tests", tmp_path / "none", "reg", publish, silent)
    (task / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    with pytest.raises(TaskError, match="compose"):
        pin_images(tmp_path / "tasks", tmp_path / "other", "reg", publish, silent)
