"""Settings: where state lives and how much of the machine is used. Values only; wiring reads the environment."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from adapters.sandboxes.kubernetes_cluster import Cluster
from domain.errors import ConfigurationError
from resources.budget import Budget, read_budget, write_budget
from resources.kubernetes_settings import environment_of_cluster, read_cluster

FIRST_EPHEMERAL_PORT = 32768
"""Listening ports lie below: a client socket may hold any port from here. Source: Linux, ip_local_port_range."""
_LONGEST_SOCKET_DIRECTORY = 85
"""Bytes left of the 107 of a Unix socket's path for the names below it. Source: Linux unix(7), sun_path."""
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the directory that is made in it is ours alone
_DOCKER_URL = "unix:///var/run/docker.sock"
_LEDGER = "ledger.db"
_UI_HOST = "127.0.0.1"
_UI_PORT = 3000
_PROXY_HOST = "127.0.0.1"
_MAX_CONCURRENT_RUNS = 2
_MODEL_THREADS = 1
_VLLM_VERSIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that may differ between two installations."""

    home: Path
    """State directory, absolute."""
    ledger_url: str
    ui_host: str = _UI_HOST
    """Dagster has no authentication: whoever reaches it runs code."""
    ui_port: int = _UI_PORT
    proxy_port: int = 0
    """TCP port of the model proxy; 0: ``synth up`` takes a free one below the ephemeral range."""
    proxy_host: str = _PROXY_HOST
    """Address that the model proxy listens on over TCP; pods need one that they can reach. Tokens alone protect it."""
    max_concurrent_runs: int = _MAX_CONCURRENT_RUNS
    """Units that run at once."""
    budget: Budget = field(default_factory=Budget)
    """What all units together may have under way."""
    model_threads: int = _MODEL_THREADS
    """Torch threads of sampler and trainer; part of what makes weights bit-equal."""
    vllm_urls: tuple[str, ...] = ()
    """Of the vLLM servers that sample; empty: the sampler of the model process does."""
    vllm_directory: Path | None = None
    """Directory of adapters, which the vLLM servers see at the same path, instead of below home."""
    vllm_versions: int = _VLLM_VERSIONS
    """Adapters that a vLLM server has loaded at once, at most its ``--max-cpu-loras``."""
    metrics: tuple[str, int] | None = None
    """Host and port of the model process's figures and health; None: nowhere."""
    docker_url: str = _DOCKER_URL
    docker_compose: str = ""
    """Path of Docker Compose; empty: the plugin of this machine's Docker."""
    """Unix socket of the Docker engine of this machine, asked only when a plan wants its boxes."""
    cluster: Cluster = field(default_factory=Cluster)
    """Kubernetes cluster, asked only when a kubeconfig is named or we run in one."""
    box_directory: Path | None = None
    """Where local boxes live instead of below home."""
    claude_code_directory: Path | None = None
    """Where packages of Claude Code lie instead of below home."""
    task_variables: tuple[str, ...] = ()
    """Names of the variables that a task may ask for with ``${VAR}``; wiring reads their values, nothing keeps them."""

    @property
    def store(self) -> Path:
        """The object store."""
        return self.home / "store"

    @property
    def journal(self) -> Path:
        """The evidence journal of the model process."""
        return self.home / "journal"

    @property
    def boxes(self) -> Path:
        """Where local boxes live."""
        return self.box_directory or self.home / "boxes"

    @property
    def vllm_adapters(self) -> Path:
        """Adapters for vLLM servers."""
        return self.vllm_directory or self.home / "adapters"

    @property
    def claude_code(self) -> Path:
        """Packages of Claude Code: an npm prefix for each version."""
        return self.claude_code_directory or self.home / "claude-code"

    @property
    def dagster(self) -> Path:
        """DAGSTER_HOME of ``synth up``."""
        return self.home / "dagster"

    @property
    def logs(self) -> Path:
        """Logs of the processes of ``synth up``."""
        return self.home / "logs"

    @property
    def run(self) -> Path:
        """What is true only while processes live."""
        return self.home / "run"

    @property
    def benchmarks(self) -> Path:
        """Recurring benchmarks: a JSON list."""
        return self.home / "benchmarks.json"

    @property
    def sockets(self) -> Path:
        """Directory of Unix sockets: ``run`` below home, or a private short one when that path is too long."""
        if len(os.fsencode(self.run)) <= _LONGEST_SOCKET_DIRECTORY:
            return self.run
        name = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"synth-{os.getuid()}-{name}"

    @property
    def proxy_socket(self) -> Path:
        """Where boxes reach the model proxy: alone in its directory, which is what boxes see of ours."""
        return self.sockets / "guest" / "proxy.sock"

    @property
    def memory_boxes(self) -> Path | None:
        """A directory for boxes in memory, None where the machine has none of 1 GiB.

        For many short trials of small tasks: on ext4 making a box's directories costs 35 times as much.
        """
        name = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:12]
        has_room = _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free >= 1 << 30
        return _SHARED_MEMORY / f"synth-{os.getuid()}-{name}" if has_room else None

    @property
    def control_socket(self) -> Path:
        """Where runs reach the model process."""
        return self.sockets / "control.sock"

    @property
    def code_socket(self) -> Path:
        """Where Dagster reaches the code server."""
        return self.sockets / "code.sock"

    @property
    def has_state(self) -> bool:
        """Whether anything was ever kept here; the ledger may be elsewhere, the store is not."""
        mine = self.ledger_url == _ledger_in(self.home)
        return (self.home / _LEDGER if mine else self.home).exists()

    def make_directories(self) -> None:
        """Create what must exist; the directories of sockets and boxes are this user's alone.

        Raises:
            ConfigurationError: a directory cannot be made, or is somebody else's.
        """
        try:
            for directory in (self.home, self.run, self.sockets, self.proxy_socket.parent, self.boxes):
                directory.mkdir(parents=True, exist_ok=True)
            for private in (self.sockets, self.boxes):
                if private.stat().st_uid != os.getuid():
                    raise ConfigurationError(f"{private} belongs to another user", hint="remove it")
                private.chmod(0o700)
        except OSError as error:
            raise ConfigurationError(
                f"{self._setting_of(error.filename)}: {error.filename}: {error.strerror}",
                hint="name a directory that this user may write",
            ) from error

    def _setting_of(self, path: object) -> str:
        """Return the variable that a path comes from."""
        boxes = self.box_directory
        return "SYNTH_BOXES" if boxes is not None and str(path) in map(str, (boxes, *boxes.parents)) else "SYNTH_HOME"


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Return the settings that an environment describes; .env.example lists the variables.

    Raises:
        ConfigurationError: naming the variable.
    """
    home = Path(environment.get("SYNTH_HOME") or ".synth").expanduser().absolute()
    metrics_port = _port(environment, "SYNTH_METRICS_PORT", 0)
    adapters = environment.get("SYNTH_VLLM_ADAPTERS")
    boxes, claude_code = environment.get("SYNTH_BOXES"), environment.get("SYNTH_CLAUDE_CODE")
    return Settings(
        home=home,
        ledger_url=environment.get("SYNTH_LEDGER_URL") or _ledger_in(home),
        ui_host=environment.get("SYNTH_UI_HOST") or _UI_HOST,
        ui_port=_port(environment, "SYNTH_UI_PORT", _UI_PORT),
        proxy_port=_port(environment, "SYNTH_PROXY_PORT", 0),
        max_concurrent_runs=_whole(environment, "SYNTH_MAX_CONCURRENT_RUNS", _MAX_CONCURRENT_RUNS, 1, 64),
        budget=read_budget(environment.get("SYNTH_BUDGET", "")),
        model_threads=_whole(environment, "SYNTH_MODEL_THREADS", _MODEL_THREADS, 1, 256),
        proxy_host=environment.get("SYNTH_PROXY_HOST") or _PROXY_HOST,
        metrics=(environment.get("SYNTH_METRICS_HOST") or _PROXY_HOST, metrics_port) if metrics_port else None,
        vllm_urls=_urls(environment, "SYNTH_VLLM_URLS"),
        vllm_directory=Path(adapters).expanduser().absolute() if adapters else None,
        vllm_versions=_whole(environment, "SYNTH_VLLM_VERSIONS", _VLLM_VERSIONS, 2, 4096),
        docker_url=environment.get("SYNTH_DOCKER_HOST") or _DOCKER_URL,
        docker_compose=environment.get("SYNTH_DOCKER_COMPOSE") or "",
        cluster=read_cluster(environment),
        task_variables=_names(environment, "SYNTH_TASK_VARIABLES"),
        box_directory=Path(boxes).expanduser().absolute() if boxes else None,
        claude_code_directory=Path(claude_code).expanduser().absolute() if claude_code else None,
    )


def _ledger_in(home: Path) -> str:
    return f"sqlite:///{home / _LEDGER}"


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the variables from which a child process reads the same settings."""
    return {
        "SYNTH_HOME": str(settings.home),
        "SYNTH_LEDGER_URL": settings.ledger_url,
        "SYNTH_UI_HOST": settings.ui_host,
        "SYNTH_UI_PORT": str(settings.ui_port),
        "SYNTH_PROXY_PORT": str(settings.proxy_port),
        "SYNTH_MAX_CONCURRENT_RUNS": str(settings.max_concurrent_runs),
        "SYNTH_BUDGET": write_budget(settings.budget),
        "SYNTH_MODEL_THREADS": str(settings.model_threads),
        "SYNTH_PROXY_HOST": settings.proxy_host,
        "SYNTH_METRICS_HOST": settings.metrics[0] if settings.metrics else "",
        "SYNTH_METRICS_PORT": str(settings.metrics[1]) if settings.metrics else "",
        "SYNTH_VLLM_URLS": ",".join(settings.vllm_urls),
        "SYNTH_VLLM_ADAPTERS": str(settings.vllm_directory or ""),
        "SYNTH_VLLM_VERSIONS": str(settings.vllm_versions),
        "SYNTH_DOCKER_HOST": settings.docker_url,
        "SYNTH_DOCKER_COMPOSE": settings.docker_compose,
        **environment_of_cluster(settings.cluster),
        "SYNTH_BOXES": str(settings.box_directory or ""),
        "SYNTH_CLAUDE_CODE": str(settings.claude_code_directory or ""),
        "SYNTH_TASK_VARIABLES": ",".join(settings.task_variables),
    }


def _names(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in environment.get(name, "").split(",") if part.strip())
    wrong = [part for part in names if not part.isidentifier() or not part.isascii() or part.startswith("SYNTH_")]
    if wrong:
        raise ConfigurationError(f"{name}: {', '.join(wrong)}: no names of variables for tasks")
    return names


def _urls(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    urls = tuple(part.strip().rstrip("/") for part in environment.get(name, "").split(",") if part.strip())
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError(f"{name}: {url!r} is no URL of a server", hint="write http://HOST:PORT,...")
    return urls


def _port(environment: Mapping[str, str], name: str, default: int) -> int:
    return _whole(environment, name, default, 0, FIRST_EPHEMERAL_PORT - 1)


def _whole(environment: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise ConfigurationError(f"{name}: {text!r} is no whole number from {low} to {high}")
    return int(text)
