"""A box with services: the agent's container as every box is, and the others to take files from and run hooks in."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import psutil

from adapters.sandboxes.compose import Services, end_project
from adapters.sandboxes.docker_box import DockerBox
from domain.errors import SandboxError
from domain.lifecycle.compose_rules import MAIN
from domain.ports import Box, BoxStats


class ServiceBox(DockerBox):
    """Another service of a box. The service itself runs there, so a command ends with its own processes alone."""

    def _start_container(self) -> None:
        """It runs, or has ended by itself."""

    def _settled(self) -> frozenset[int]:
        return frozenset()

    def _revive(self) -> None:
        if not self._running.is_alive:
            raise SandboxError(f"box {self._spec.box_id}: the service has ended")

    def _furnish(self) -> None:
        """Its files are its image's."""

    def _end_processes(self) -> None:
        pid = 0 if self._executing is None else self._executing.pid
        if not pid:
            return
        try:
            started = psutil.Process(pid)
            left = [started, *started.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for process in left:
            process.kill()

    async def destroy(self) -> None:
        """It ends with its box."""
        self.close()


class ComposeBox(DockerBox):
    """The agent's service; see :meth:`service` for the others."""

    def __init__(self, services: Services, **others: Any) -> None:
        """Take the running services; the rest is as a box of one container has it."""
        super().__init__(container=services.containers[MAIN], **others)
        self._services = services
        self._opened: dict[str, ServiceBox] = {}

    def start(self) -> None:
        """Open the agent's container, and watch what all services write."""
        super().start()
        for name, container in self._services.containers.items():
            if name != MAIN and self._engine.api.inspect_container(container)["State"]["Running"]:
                self._written += self._open_service(name).written

    def _open_service(self, name: str) -> ServiceBox:
        container = self._services.containers.get(name)
        if container is None:
            known = ", ".join(sorted(self._services.containers))
            raise SandboxError(f"box {self._spec.box_id} has no service {name!r}", hint=f"it has {known}")
        if name not in self._opened:
            box = ServiceBox(
                engine=self._engine,
                spec=self._spec,
                image=self._services.images[name],
                container=container,
                proxy_socket=None,
            )
            box.start()
            self._opened[name] = box
        return self._opened[name]

    async def service(self, name: str) -> Box:
        """Return another service's container, as a box that ends with this one.

        Raises:
            SandboxError: there is none of this name, or it has ended.
        """
        return self if name == MAIN else await asyncio.to_thread(self._open_service, name)

    async def stats(self) -> BoxStats:
        """Return consumption of the agent's container, and which images the others started from."""
        stats = await super().stats()
        images: Mapping[str, str] = {
            f"service {name}": image.image_id for name, image in self._services.images.items() if name != MAIN
        }
        return replace(stats, made_from={**stats.made_from, **images})

    def _network(self) -> str:
        return self._services.network if self._egress is None else super()._network()

    def remove(self) -> None:
        """End and remove everything of the project."""
        for box in self._opened.values():
            box.close()
        end_project(self._engine, self._spec.box_id)
