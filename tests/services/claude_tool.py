"""The real Claude Code for tests: its platform package from npm, kept between runs, and a policy that plays a part."""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adapters.families.qwen3 import Qwen3Family
from adapters.trainers.tokenizer_training import byte_tokenizer
from domain.errors import NotFoundError
from domain.ports import SampleRequest, SampleResult
from domain.records.trial import StopReason
from tests.fakes.scripted_model import ScriptedSampler

VERSION = "2.1.197"
"""Source: real-parts.md."""
SUMMARY_WANTED = "CRITICAL: Respond with TEXT ONLY"
_MARK = "[[part:"
_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}
_ENVIRONMENT = dict(os.environ)  # noqa: TID251 - tests may; npm inherits it


def require_claude() -> Path:
    """Return the directory of packages by version; where npm is missing skip, or fail where ``CI`` is set."""
    tools = Path(_ENVIRONMENT.get("SYNTH_TOOLS_DIR", Path.home() / ".cache" / "synth-tools"))
    packages = tools / "claude-code"
    if _is_installed(packages):
        return packages
    if shutil.which("npm") is None or platform.machine() not in _MACHINES:
        message = "needs npm, and Linux on x86-64 or arm64"
        if _ENVIRONMENT.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    _install(packages)
    return packages


def binary() -> Path:
    """Return the program."""
    return _package(require_claude()) / "claude"


def _package(packages: Path) -> Path:
    name = f"claude-code-linux-{_MACHINES.get(platform.machine(), '')}"
    return packages / VERSION / "node_modules" / "@anthropic-ai" / name


def _is_installed(packages: Path) -> bool:
    return (packages / VERSION / "installed").exists()


def _install(packages: Path) -> None:
    """Install the platform package (245 MB) alone: its binary needs no post-install step."""
    prefix = packages / VERSION
    prefix.mkdir(parents=True, exist_ok=True)
    package = f"@anthropic-ai/{_package(packages).name}@{VERSION}"
    command = ("npm", "install", "--prefix", str(prefix), "--ignore-scripts", "--no-save", "--no-audit", package)
    subprocess.run(command, check=True, capture_output=True, env=_ENVIRONMENT, timeout=300)
    (prefix / "installed").touch()


def call(name: str, **arguments: object) -> str:
    """Return a tool call as Qwen3 writes it, with a spacing that no template has."""
    written = json.dumps({"name": name, "arguments": arguments}, separators=(",", ":  "))
    return f"<tool_call>\n{written}\n</tool_call>"


@dataclass
class PartSampler(ScriptedSampler):
    """Plays several parts: a prompt belongs to the part whose marker (``[[part:name]]``) it shows first.

    Each part has lines of its own, so that agents which run beside each other cannot take each other's. A request for
    a summary of part ``x`` is answered by the lines of part ``x summary``.
    """

    parts: Mapping[str, list[str | Exception]] = field(default_factory=dict[str, list[str | Exception]])
    family: Qwen3Family = field(default_factory=lambda: Qwen3Family(byte_tokenizer()))
    played: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Part and line of each sample, in order."""
    context_tokens: int = 400_000

    def __post_init__(self) -> None:
        """Encode in the bytes of the family's tokenizer."""
        self._tokenizer = byte_tokenizer()

    async def sample(self, request: SampleRequest) -> SampleResult:
        """Say the next line of the part, cut at ``max_tokens``."""
        if request.version not in self.loaded:
            raise NotFoundError(f"no version {request.version}")
        self.requests.append(request)
        part = self._part(self.family.decode(request.prompt_ids))
        lines = self.parts.get(part, [])
        line = lines.pop(0) if lines else f"nothing left to say as {part}"
        self.played.append((part, str(line)))
        if isinstance(line, Exception):
            raise line
        whole = (*self._tokenizer.encode(line, add_special_tokens=False).ids, self.family.stop_ids[0])
        ids = whole[: request.max_tokens]
        return SampleResult(
            sampled_ids=ids,
            logprobs=tuple(-0.25 - 0.001 * index for index in range(len(ids))),
            stop_reason=StopReason.STOP if len(ids) == len(whole) else StopReason.LENGTH,
            version=request.version,
        )

    def _part(self, prompt: str) -> str:
        if _MARK not in prompt:
            return "nobody"
        first = prompt.split(_MARK, 1)[1].partition("]]")[0]
        return f"{first} summary" if SUMMARY_WANTED in prompt.rpartition("<|im_start|>user")[2] else first
