"""One box: a running pod. Commands and copies go in one after another, each over a WebSocket of its own."""

import asyncio
import re
from contextlib import suppress

from adapters.sandboxes.kubernetes_api import Api
from adapters.sandboxes.kubernetes_commands import Bounds, PodCommands, to_the_end
from adapters.sandboxes.kubernetes_exec import Ended, Output, new_mark, run
from adapters.sandboxes.kubernetes_files import (
    TooMuchError,
    check_copy,
    clean,
    download_script,
    repacked,
    upload_script,
)
from adapters.sandboxes.kubernetes_link import Link
from adapters.sandboxes.kubernetes_objects import Json, items, name_of
from adapters.sandboxes.kubernetes_pods import remove
from adapters.sandboxes.kubernetes_probe import enforcement
from adapters.sandboxes.kubernetes_shell import COUNT, Words
from adapters.sandboxes.kubernetes_watch import Watch
from adapters.sandboxes.transfer import absolute, parts_of
from domain.errors import BoxContentError, SandboxError, boundary
from domain.ports import BoxSpec, BoxStats, Command, CommandResult

_MB = 1 << 20
_COPY_S = 600.0
_REMOVE_S = 12.0
_PROBE_S = 60.0
_DOWNLOAD_MB = 2048
"""Bound on one download when the box's disk is not limited."""
_KERNEL = ("proc", "sys", "dev")
_WRITTEN = ("/tmp", "/var/tmp", "/logs", "/tests", "/home", "/root", "/srv")  # noqa: S108 - of the pod, not ours
"""Where files are counted beside the working directory; elsewhere the pod's ephemeral storage is the limit."""
_TOOLS = ("head", "mkdir", "sleep", "tar", "du", "chmod", "id")
_FIELD = re.compile(r"(\w+)=(\S*)")


class KubernetesBox:
    """A box over a pod that runs.

    Args:
        link: this process's link to the cluster.
        api: its connection.
        watch: its watch.
        spec: what was asked for.
        pod: as the API has it.
    """

    def __init__(self, link: Link, api: Api, watch: Watch, spec: BoxSpec, pod: Json) -> None:
        self._link = link
        self._api = api
        self._watch = watch
        self._spec = spec
        self._pod = pod
        self._name = name_of(pod)
        limits = spec.limits
        memory = None if limits.memory_mb is None else limits.memory_mb * _MB
        self._commands = PodCommands(api, watch, self._name, memory)
        self._bounds = Bounds(
            output_bytes=limits.output_bytes,
            processes=limits.processes,
            disk_kib=None if limits.disk_mb is None else limits.disk_mb * 1024,
            used_kib=0,
            written=" ".join(path for path in (*_WRITTEN, spec.environment.workdir) if " " not in path),
        )
        self._is_root = True
        self._lock = asyncio.Lock()

    @property
    def name(self) -> str:
        """The pod's."""
        return self._name

    @property
    def proxy_url(self) -> str | None:
        """Base URL of the model proxy as pods reach it; None without model access."""
        return self._link.cluster.proxy_url if self._spec.model_access else None

    @property
    def proxy_socket(self) -> str | None:
        """None: a pod has no socket of ours."""
        return None

    async def furnish(self) -> None:
        """Make the directories that every box has, and see that the image has what a box is worked with.

        Runs in the link's loop. Raises SandboxError.
        """
        words = Words()
        workdir = words.quoted(self._spec.environment.workdir)
        logs = "/logs/agent /logs/verifier /logs/artifacts"
        script = (
            f"{COUNT}missing=\nfor t in {' '.join(_TOOLS)}; do command -v $t >/dev/null || missing=$missing,$t; done\n"
            f'[ -z "$missing" ] || {{ printf "missing=%s" "$missing"; exit 0; }}\n{words.made}'
            f"mkdir -p {logs} && chmod 777 {logs} || exit 1\n"
            f"[ -d {workdir} ] || {{ mkdir -p -- {workdir} && chmod 777 -- {workdir}; }} || exit 1\n"
            f"written='{self._bounds.written}'; used; printf 'kib=%s uid=%s' \"$kib\" \"$(id -u)\"\n"
        )
        output = Output(4096)
        ended = await run(self._api, self._name, script, new_mark(), output.keep)
        said = dict(_FIELD.findall(output.stdout.decode(errors="replace")))
        if "missing" in said:
            raise SandboxError(f"the image has no {said['missing'].strip(',')}", hint="a box needs them for its files")
        if ended.exit_code != 0:
            words_said = (output.stderr.decode(errors="replace") or ended.message).strip()
            raise SandboxError(f"the box could not be furnished: {words_said[-300:]}")
        self._is_root = said.get("uid") == "0"
        used = int(said.get("kib") or 0)
        self._bounds = Bounds(
            output_bytes=self._bounds.output_bytes,
            processes=self._bounds.processes,
            disk_kib=self._bounds.disk_kib,
            used_kib=used,
            written=self._bounds.written,
        )

    async def exec(self, command: Command) -> CommandResult:
        """Run to its end or its time-out; every process it started is dead when this returns.

        Raises:
            SandboxError: the box is destroyed, the command could not be started, or the pod failed under it.
        """
        async with self._lock:
            self._check()
            if not command.argv:
                raise SandboxError("a command needs a program")
            with boundary(SandboxError, f"exec in box {self._spec.box_id}"):
                cwd = command.cwd or self._spec.environment.workdir
                return await self._link.loop.call(self._commands.run(command, cwd, self._bounds))

    async def upload(self, tar: bytes, target: str) -> None:
        """Unpack below ``target``; refuses links and paths that leave it. Files belong to the box's first user."""
        async with self._lock:
            self._check()
            with boundary(SandboxError, f"upload to {target} in box {self._spec.box_id}"):
                goal = parts_of(target)
                content, directories = await asyncio.to_thread(clean, tar, goal, keeps_directories=self._is_root)
                script = upload_script(len(content), goal, directories, makes_directories=not self._is_root)
                output = Output(4096)
                ended = await self._link.loop.call(self._copy(script, output, content))
                check_copy(ended.exit_code, output.stderr, target)

    async def download(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Return a deterministic tar of a file or directory, as every box does.

        Raises:
            NotFoundError: the path does not exist.
            BoxContentError: a device, FIFO, socket or link that leaves ``path``, or more than ``max_bytes``.
            SandboxError: the pod or the connection to it failed.
        """
        async with self._lock:
            self._check()
            with boundary(SandboxError, f"download of {path} from box {self._spec.box_id}"):
                top = parts_of(path)
                if not top or top[0] in _KERNEL:
                    raise SandboxError(f"{absolute(top)} belongs to the kernel", hint="name a directory of the work")
                bound = (self._spec.limits.disk_mb or _DOWNLOAD_MB) * 2 * _MB if max_bytes is None else max_bytes
                output = Output(2 * bound + _MB)
                try:
                    ended = await self._link.loop.call(self._copy(download_script(top), output, b""))
                except TimeoutError:
                    raise BoxContentError(f"the copy of {path} did not end within {_COPY_S:g} s") from None
                check_copy(ended.exit_code, output.stderr, path)
                return await asyncio.to_thread(repacked, output.stdout, top, bound)

    async def _copy(self, script: str, output: Output, stdin: bytes) -> Ended:
        """Run a copy; one that is cancelled, takes too long or is too large is ended in the pod, too."""
        self._commands.check()

        def keep(stream: int, data: bytes) -> None:
            output.keep(stream, data)
            if output.n_dropped:
                raise TooMuchError("more than the allowed bytes", hint="leave less in the box")

        try:
            async with asyncio.timeout(_COPY_S):
                return await run(self._api, self._name, script, new_mark(), keep, stdin=stdin)
        except BaseException:
            await to_the_end(self._commands.kill())
            raise

    async def stats(self) -> BoxStats:
        """Return consumption, as the pod's control group had it after the last command."""
        counters, spec = self._commands.counters, self._spec
        watcher = "watcher in the pod"
        return BoxStats(
            cpu_s=counters.cpu_s,
            peak_memory_bytes=counters.peak_bytes,
            limits_enforced_by={
                "time": "kill of every process in the pod, and the pod's deadline",
                "output": "reader of the connection",
                "memory": "none" if spec.limits.memory_mb is None else "kubelet",
                "processes": "none" if spec.limits.processes is None else watcher,
                "disk": "none" if spec.limits.disk_mb is None else f"{watcher}, kubelet",
                "network": f"{spec.environment.network_mode.value}, network policy {await self._policies()}",
                "cpus": "none" if spec.environment.cpus is None else "kubelet",
            },
            made_from=self._made_from(),
        )

    async def _policies(self) -> str:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PROBE_S):
                return await self._link.loop.call(enforcement(self._link, self._spec))
        return "not probed in time"

    def _made_from(self) -> dict[str, str]:
        named = str(items(self._pod, "spec", "containers")[0]["image"])
        found = "".join(str(each.get("imageID") or "") for each in items(self._pod, "status", "containerStatuses"))
        digests = {"digests": found} if "@sha256:" in found else {}
        return {"image": found.rpartition("@")[2] or named, "name": named, **digests}

    async def destroy(self) -> None:
        """End every process and remove pod and policy; twice is fine.

        A cluster that hangs or fails holds up nobody: what is left is the janitor's, and the pod has its own deadline.
        """
        first, self._commands.is_removed = not self._commands.is_removed, True
        if first:
            with suppress(TimeoutError, SandboxError):
                await to_the_end(self._link.loop.call(self._remove()))

    async def _remove(self) -> None:
        async with asyncio.timeout(_REMOVE_S):
            await remove(self._api, self._watch, self._name, _REMOVE_S)

    def _check(self) -> None:
        if self._commands.is_removed:
            raise SandboxError(f"box {self._spec.box_id} is destroyed", hint="create a new box")
