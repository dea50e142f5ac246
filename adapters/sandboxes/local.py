"""Boxes on this machine, walled in by bubblewrap; no image, no container engine.

A box has the host's ``/usr`` read-only, its own ``/etc``, and directories of its own. It has no network but loopback:
``network_mode = "public"``, which is Harbor's default, is realised without egress, and the record of every trial says
so (``limits_enforced_by["network"]``). What a task's image would bring is not there, so such tasks are refused unless
they declare themselves host-runnable.
"""

import asyncio
from contextlib import suppress
from pathlib import Path

from adapters.sandboxes.cgroups import Groups, find_groups
from adapters.sandboxes.isolation import (
    FIXED,
    SKELETON_LAYOUT,
    TOPS,
    Way,
    choose_way,
    is_fixed,
    make_root,
    write_skeleton,
)
from adapters.sandboxes.labels import Label, boot_id, read_label, this_process, write_label
from adapters.sandboxes.local_box import LocalBox, furnish
from adapters.sandboxes.orphans import end_orphans
from adapters.sandboxes.removal import remove_box
from domain.errors import SandboxError, boundary
from domain.ports import Box, BoxSpec
from domain.records.task import NetworkMode, TaskEnvironment

_STALE_WITHOUT_LABEL_S = 20.0
"""A directory without a label for so long was left by a process that died as it made or removed it."""


class LocalSandbox:
    """Makes bubblewrap boxes below a scratch directory.

    Args:
        scratch: directory of this machine for boxes; several processes may share it.
        proxy_socket: Unix socket of the model proxy, reachable only in boxes with model access.
        way: how boxes get their users; None: the first that works here (see ``isolation``).
        use_groups: whether control groups hold the limits where this process may make any.
    """

    def __init__(
        self, scratch: Path, proxy_socket: Path | None, *, way: Way | None = None, use_groups: bool = True
    ) -> None:
        self._scratch = scratch
        self._boxes = scratch / "boxes"
        self._skeleton = scratch / f"skeleton-{SKELETON_LAYOUT}"
        self._proxy_socket = proxy_socket
        self._wanted_way: Way | None = way
        self._way: Way | None = None
        self._choosing = asyncio.Lock()
        self._use_groups = use_groups
        self._groups: Groups | None = None

    @property
    def name(self) -> str:
        """``local``."""
        return "local"

    @property
    def system_directories(self) -> frozenset[str]:
        """What boxes see of this machine, read-only."""
        return FIXED

    @property
    def binds_toolchains(self) -> bool:
        """Yes."""
        return True

    def refusals(self, environment: TaskEnvironment) -> tuple[str, ...]:
        """Name everything of ``environment`` that cannot be realised here; empty: admitted."""
        image = not environment.host_runnable
        top = environment.workdir.strip("/").split("/")[0]
        asked = {
            "environment.docker_image": image and environment.docker_image is not None,
            "environment/Dockerfile": image and environment.dockerfile,
            "environment/docker-compose.yaml": image and environment.compose,
            "environment.gpus": bool(environment.gpus),
            "environment.gpu_types": bool(environment.gpu_types),
            "environment.network_mode = 'allowlist'": environment.network_mode is NetworkMode.ALLOWLIST,
            f"environment.workdir = {environment.workdir!r} (the system is read-only)": not top or is_fixed(top),
        }
        return tuple(f"{what}: not in a local box" for what, present in asked.items() if present)

    async def create(self, spec: BoxSpec) -> Box:
        """Create a box.

        Raises:
            SandboxError: the machine cannot make boxes, the id is taken, or there is no proxy to give access to.
        """
        refused = self.refusals(spec.environment)
        if refused:
            raise SandboxError(
                f"box {spec.box_id}: {'; '.join(refused)}", hint="admission names this before anything runs"
            )
        if spec.model_access and self._proxy_socket is None:
            raise SandboxError(f"box {spec.box_id}: no model proxy is running", hint="start the model process")
        with boundary(SandboxError, f"create box {spec.box_id}"):
            way = await self._chosen_way()
            directory = self._boxes / spec.box_id
            try:
                self._make(directory, spec, way)
            except FileExistsError:
                raise SandboxError(f"box {spec.box_id} exists already", hint="a box id is used once") from None
            except BaseException:
                remove_box(directory)
                raise
        return LocalBox(
            spec=spec,
            directory=directory,
            skeleton=self._skeleton,
            way=way,
            proxy_socket=self._proxy_socket,
            groups=self._groups,
        )

    def _make(self, directory: Path, spec: BoxSpec, way: Way) -> None:
        if "/" in spec.box_id or spec.box_id.startswith("."):
            raise SandboxError(f"box id {spec.box_id!r} is no file name")
        directory.mkdir(mode=0o700)
        pid, started = this_process()
        label = Label(
            box_id=spec.box_id,
            experiment_id=spec.experiment_id,
            trial_id=spec.trial_id,
            fence=spec.fence,
            deadline_ms=spec.deadline_ms,
            owner_pid=pid,
            owner_started=started,
            boot=boot_id(),
        )
        write_label(directory, label)
        make_root(directory / "root", TOPS, way)
        furnish(directory / "root", spec.environment.workdir, way)

    async def _chosen_way(self) -> Way:
        if self._way is not None:
            return self._way  # without the lock, which belongs to the event loop that chose
        async with self._choosing:
            if self._way is None:
                self._scratch.mkdir(parents=True, exist_ok=True)
                self._boxes.mkdir(mode=0o700, exist_ok=True)
                await asyncio.to_thread(write_skeleton, self._skeleton)
                if self._use_groups:
                    self._groups = await asyncio.to_thread(find_groups)
                self._way = await choose_way(self._scratch, self._skeleton, self._wanted_way)
            return self._way

    async def sweep(self, now_ms: int) -> tuple[str, ...]:
        """End boxes of dead owners or past their deadline; returns their ids. Touches nothing else."""
        return await asyncio.to_thread(self._sweep, now_ms)

    def _sweep(self, now_ms: int) -> tuple[str, ...]:
        if not self._boxes.is_dir():
            return ()
        over = [directory for directory in sorted(self._boxes.iterdir()) if _is_finished(directory, now_ms)]
        names = {directory.name for directory in over}
        # Gone boxes count, too: what an owner left half-started may show itself only to a later sweep.
        end_orphans(self._boxes, lambda name: name in names or not (self._boxes / name).exists())
        for directory in over:
            remove_box(directory)
        if (groups := find_groups()) is not None:
            groups.sweep()
        return tuple(directory.name for directory in over)


def _is_finished(directory: Path, now_ms: int) -> bool:
    label = read_label(directory)
    return _is_stale(directory, now_ms) if label is None else _is_over(label, now_ms)


def _is_over(label: Label, now_ms: int) -> bool:
    return now_ms > label.deadline_ms or not label.owner_lives()


def _is_stale(directory: Path, now_ms: int) -> bool:
    with suppress(OSError):
        return now_ms / 1000 - directory.stat().st_mtime > _STALE_WITHOUT_LABEL_S
    return False
