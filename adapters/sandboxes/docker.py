"""Boxes as Docker containers: the task's own image, one container for a box, on the engine of this machine.

A container has no network unless the task asks for the public one. The model proxy's Unix socket is mounted into boxes
with model access, and a relay beside the container, in its network namespace, answers for it on loopback. Another one
leads to the forward proxy of a box that may reach some hosts.
"""

import json
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adapters.sandboxes.compose import end_project, start_project, sweep_projects
from adapters.sandboxes.compose_box import ComposeBox
from adapters.sandboxes.compose_model import Means
from adapters.sandboxes.compose_tool import find_compose
from adapters.sandboxes.docker_box import DockerBox
from adapters.sandboxes.docker_engine import LABEL, Engine, Image, apart
from adapters.sandboxes.egress import EgressProxy, socket_of, sweep_sockets
from adapters.sandboxes.isolation import INNER, TOOLS
from adapters.sandboxes.labels import Label, boot_id, this_process
from domain.errors import SandboxError, boundary
from domain.lifecycle.compose_rules import MAIN
from domain.ports import Box, BoxSpec, Store
from domain.records.task import NetworkMode, TaskEnvironment

_NO_COMPOSE = "needs Docker Compose 2.17 or newer: install Docker's compose plugin, or set SYNTH_DOCKER_COMPOSE"
_MB = 1 << 20
_OURS = 2
"""Processes of a container that are not the task's: Docker's init, and what it keeps alive."""
_DROPPED = ["NET_RAW", "MKNOD", "SYS_CHROOT", "AUDIT_WRITE"]
"""Of Docker's default capabilities: packets of one's own making, devices, what no task needs."""


class DockerSandbox:
    """Makes containers on one engine.

    Args:
        url: the engine's Unix socket, as ``unix:///path``.
        store: where task archives lie, for images that are built.
        proxy_socket: Unix socket of the model proxy, mounted in boxes with model access alone.
        compose: path of Docker Compose; empty: the plugin of this machine's Docker, where there is one.
    """

    def __init__(self, url: str, store: Store, proxy_socket: Path | None, *, compose: str = "") -> None:
        self._engine = Engine(url, store)
        self._proxy_socket = proxy_socket
        self._compose = compose

    @property
    def name(self) -> str:
        """``docker``."""
        return "docker"

    @property
    def binds_toolchains(self) -> bool:
        """Yes: the engine is this machine's."""
        return True

    def refusals(self, environment: TaskEnvironment) -> tuple[str, ...]:
        """Name everything of ``environment`` that cannot be realised here; empty: admitted."""
        asked = {
            "environment.gpus": bool(environment.gpus),
            "environment.gpu_types": bool(environment.gpu_types),
            f"environment.workdir = {environment.workdir!r}": not environment.workdir.strip("/"),
        }
        refused = [f"{what}: not in a docker box" for what, present in asked.items() if present]
        if environment.compose and find_compose(self._compose) is None:
            refused.append(f"environment/docker-compose.yaml: {_NO_COMPOSE}")
        silence = "" if refused else self._engine.silence()
        return (*refused, *([silence] if silence else []))

    async def create(self, spec: BoxSpec) -> Box:
        """Create a box.

        Raises:
            SandboxError: the engine refuses, the image cannot be had, the id is taken, or there is no proxy.
        """
        refused = await apart(lambda: self.refusals(spec.environment))
        if refused:
            raise SandboxError(
                f"box {spec.box_id}: {'; '.join(refused)}", hint="admission names this before anything runs"
            )
        if spec.model_access and self._proxy_socket is None:
            raise SandboxError(f"box {spec.box_id}: no model proxy is running", hint="start the model process")
        proxy_socket = self._proxy_socket if spec.model_access else None
        with boundary(SandboxError, f"create box {spec.box_id}"):
            make = self._make_services if spec.environment.compose else self._make
            async with AsyncExitStack() as undo:
                egress: EgressProxy | None = None
                if spec.environment.network_mode is NetworkMode.ALLOWLIST:
                    egress = EgressProxy(spec.environment.allowed_hosts, socket_of(spec.box_id))
                    await undo.enter_async_context(egress)
                box = await apart(lambda: make(spec, proxy_socket, egress), forsaken=_discard)
                undo.pop_all()  # from here on the box ends it
                return box

    def _make_services(self, spec: BoxSpec, proxy_socket: Path | None, egress: EgressProxy | None) -> DockerBox:
        program = find_compose(self._compose)
        if program is None:
            raise SandboxError(f"box {spec.box_id}: {_NO_COMPOSE}")
        label = _label(spec)
        means = Means(
            label=LABEL,
            text=_text(label),
            dropped=tuple(_DROPPED),
            extra_processes=_OURS,
            proxy_socket=proxy_socket,
        )
        try:
            services = start_project(self._engine, program, spec, self._engine.context(spec), label, means)
            image = services.images[MAIN]
            box = ComposeBox(
                services, engine=self._engine, spec=spec, image=image, proxy_socket=proxy_socket, egress=egress
            )
            box.start()
        except BaseException:
            with suppress(SandboxError):
                end_project(self._engine, spec.box_id)
            raise
        return box

    def _make(self, spec: BoxSpec, proxy_socket: Path | None, egress: EgressProxy | None) -> DockerBox:
        image = self._engine.image(spec)
        container = self._create(spec, image, proxy_socket)
        box = DockerBox(
            engine=self._engine,
            spec=spec,
            image=image,
            container=container,
            proxy_socket=proxy_socket,
            egress=egress,
        )
        try:
            box.start()
        except BaseException:
            _discard(box)
            raise
        return box

    def _create(self, spec: BoxSpec, image: Image, proxy_socket: Path | None) -> str:
        from docker.errors import APIError

        try:
            made = self._engine.api.create_container(
                image=image.image_id,
                name=f"synth-{spec.box_id}",
                entrypoint=["sleep"],
                command=["2147483647"],
                hostname="box",
                healthcheck={"test": ["NONE"]},  # of what the image runs when it is no box
                labels={LABEL: _text(_label(spec))},
                host_config=self._host(spec, proxy_socket),
            )
        except APIError as error:
            if error.status_code == 409:  # noqa: PLR2004 - 409 Conflict: the name is taken
                raise SandboxError(f"box {spec.box_id} exists already", hint="a box id is used once") from None
            raise
        return str(made["Id"])

    def _host(self, spec: BoxSpec, proxy_socket: Path | None) -> Any:
        """Return the engine's side of a container: limits, network, capabilities, and the proxy's directory."""
        limits, environment = spec.limits, spec.environment
        memory = None if limits.memory_mb is None else limits.memory_mb * _MB
        mounts = {each.source: {"bind": f"{TOOLS}/{each.name}", "mode": "ro"} for each in spec.toolchains}
        if proxy_socket is not None:
            mounts[str(proxy_socket.parent)] = {"bind": f"{INNER}/model", "mode": "ro"}
        return self._engine.api.create_host_config(
            init=True,
            network_mode=self._engine.network() if environment.network_mode is NetworkMode.PUBLIC else "none",
            mem_limit=memory,
            memswap_limit=memory,
            pids_limit=None if limits.processes is None else limits.processes + _OURS,
            nano_cpus=None if environment.cpus is None else int(environment.cpus * 1e9),
            cap_drop=_DROPPED,
            binds=mounts,
        )

    async def sweep(self, now_ms: int) -> tuple[str, ...]:
        """End boxes of dead owners or past their deadline; returns their ids. Touches nothing else."""
        return await apart(lambda: self._sweep(now_ms))

    def _sweep(self, now_ms: int) -> tuple[str, ...]:
        sweep_sockets()
        if self._engine.silence():
            return ()

        def is_over(label: Label) -> bool:
            return now_ms > label.deadline_ms or not label.owner_lives()

        ended: set[str] = set()
        for container, text in list(self._engine.boxes()):
            if (label := _read(text)) is not None and is_over(label):
                self._engine.remove(container)
                ended.add(label.box_id)
        parts = (label for text in self._engine.shared_parts() if (label := _read(text)) is not None)
        ended.update(sweep_projects(self._engine, is_over, [label.box_id for label in parts if is_over(label)]))
        return tuple(sorted(ended))


def _discard(box: DockerBox) -> None:
    """Remove a box that nobody got; what cannot be removed is the janitor's."""
    with suppress(SandboxError):
        box.remove()


def _label(spec: BoxSpec) -> Label:
    pid, started = this_process()
    return Label(
        box_id=spec.box_id,
        experiment_id=spec.experiment_id,
        trial_id=spec.trial_id,
        fence=spec.fence,
        deadline_ms=spec.deadline_ms,
        owner_pid=pid,
        owner_started=started,
        boot=boot_id(),
    )


def _text(label: Label) -> str:
    return json.dumps(asdict(label), sort_keys=True)


def _read(text: str) -> Label | None:
    """Return a label, None when it is none of ours."""
    try:
        return Label(**json.loads(text))
    except (ValueError, TypeError):
        return None
