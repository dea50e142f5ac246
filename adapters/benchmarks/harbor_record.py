"""From the tables of ``task.toml`` to records: what is left open gets the value that Harbor, or we, give it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from adapters.benchmarks.harbor_schema import (
    ArtifactTable,
    Collect,
    EnvironmentTable,
    HarborTask,
    PhaseTable,
    StepTable,
    VerifierTable,
)
from adapters.benchmarks.harbor_schema import Healthcheck as HealthcheckTable
from adapters.benchmarks.instructions import strip_canary
from adapters.benchmarks.task_archive import TaskFile
from domain.records.task import (
    Artifact,
    CollectHook,
    Healthcheck,
    McpServer,
    NetworkMode,
    NetworkPolicy,
    Phase,
    Step,
    TaskEnvironment,
    VerifierMode,
)

DEFINITIONS = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml")
_COMPOSE = DEFINITIONS[1:]
_DEFAULT_WORKDIR = "/app"
_WORKDIR = re.compile(r"^\s*WORKDIR\s+(?P<path>/\S*)\s*$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierPlace:
    """Where a verifier runs."""

    mode: VerifierMode
    environment: TaskEnvironment | None
    network: NetworkPolicy | None
    bundles_tests: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMaker:
    """Makes records of one task."""

    config: HarborTask
    files: Mapping[str, TaskFile]
    host_runnable: bool

    def environment(self, host_files: str | None) -> TaskEnvironment:
        """Return what the agent's box is made of."""
        return self._environment(self.config.environment, "environment", host_files)

    def _environment(self, table: EnvironmentTable, context: str, host_files: str | None) -> TaskEnvironment:
        dockerfile = self.files.get(f"{context}/Dockerfile")
        check = table.healthcheck
        return TaskEnvironment(
            dockerfile=dockerfile is not None,
            compose=any(f"{context}/{name}" in self.files for name in _COMPOSE),
            docker_image=table.docker_image,
            host_runnable=self.host_runnable,
            host_files=host_files,
            workdir=_workdir(table.workdir, dockerfile),
            cpus=table.cpus,
            memory_mb=table.memory_mb if table.memory_mb is not None else table.memory,
            storage_mb=table.storage_mb if table.storage_mb is not None else table.storage,
            gpus=table.gpus,
            network_mode=NetworkMode(table.mode()),
            allowed_hosts=tuple(table.allowed_hosts or ()),
            env=table.env,
            context=context,
            build_timeout_s=table.build_timeout_sec,
            gpu_types=tuple(table.gpu_types or ()),
            mcp_servers=tuple(
                McpServer(
                    name=server.name,
                    transport=server.transport,
                    url=server.url,
                    command=server.command,
                    args=tuple(server.args),
                    headers=server.headers,
                )
                for server in table.mcp_servers
            ),
            skills_dir=table.skills_dir,
            healthcheck=None if check is None else _healthcheck(check),
        )

    def verifier_phase(self, step: StepTable | None = None) -> Phase:
        """Return the verifier's phase; what a step leaves open is the task's, its time limit too."""
        task = self.config.verifier
        if step is None:
            return Phase(timeout_s=task.timeout_sec, user=task.user, env=task.env)
        own = step.verifier
        return Phase(
            timeout_s=own.timeout_sec if "timeout_sec" in own.model_fields_set else task.timeout_sec,
            user=own.user if own.user is not None else task.user,
            env={**task.env, **own.env},
        )

    def agent_phase(self, step: StepTable | None = None) -> Phase:
        """Return the agent's phase."""
        own, task = (step or self.config).agent, self.config.agent
        return Phase(
            timeout_s=own.timeout_sec if own.timeout_sec is not None else task.timeout_sec,
            user=own.user if own.user is not None else task.user,
            env={},
        )

    def agent_networks(self) -> tuple[NetworkPolicy, ...]:
        """Return the agent's network in each step, or in the one phase there is."""
        baseline = _policy_of(self.config.environment)
        task = _policy_of(self.config.agent) or baseline
        phases = [_policy_of(step.agent) or task for step in self.config.steps or ()] or [task]
        return tuple(policy or NetworkPolicy(mode=NetworkMode.PUBLIC) for policy in phases)

    def agent_network(self) -> NetworkPolicy | None:
        """Return the agent's network where it is not the environment's."""
        own = self.agent_networks()[0]
        baseline = self.config.environment
        given = NetworkPolicy(mode=NetworkMode(baseline.mode()), allowed_hosts=tuple(baseline.allowed_hosts or ()))
        return None if own == given else own

    def verifier_place(self, step: StepTable | None = None) -> VerifierPlace:
        """Return where the verifier runs, and with which image.

        Source: Harbor 0.26 ``models/task/verifier_mode.py``. Two things differ: nothing said means separate, and no
        network.
        """
        levels = [self.config.verifier] if step is None else [step.verifier, self.config.verifier]
        mode = next((mode for level in levels if (mode := _mode(level)) is not None), VerifierMode.SEPARATE)
        table = next((level.environment for level in levels if level.environment is not None), None)
        network = next((policy for level in levels if (policy := _policy_of(level)) is not None), None)
        if network is None and table is not None:
            network = _policy_of(table)
        if mode is VerifierMode.SHARED:
            return VerifierPlace(mode=mode, environment=None, network=network, bundles_tests=False)
        context, image = self._bundle(step)
        bundles = context is not None or image is not None
        if not bundles and table is None:
            return VerifierPlace(mode=mode, environment=None, network=network, bundles_tests=False)
        chosen = table or self.config.environment
        image = image if bundles else self.config.environment.docker_image
        environment = self._environment(
            chosen.model_copy(update={"docker_image": image}), context or "environment", None
        )
        return VerifierPlace(mode=mode, environment=environment, network=network, bundles_tests=bundles)

    def _bundle(self, step: StepTable | None) -> tuple[str | None, str | None]:
        """Return the directory that builds the verifier's image, or the image's name; both bring their tests."""
        places = [(self.config.verifier, "tests")]
        if step is not None:
            places.insert(0, (step.verifier, f"steps/{step.name}/tests"))
        for table, directory in places:
            if table.environment is not None and table.environment.docker_image is not None:
                return None, table.environment.docker_image
            if any(f"{directory}/{name}" in self.files for name in DEFINITIONS):
                return directory, None
        return None, None

    def steps(self) -> tuple[Step, ...]:
        """Return the steps in order."""
        return tuple(self._step(step) for step in self.config.steps or ())

    def _step(self, table: StepTable) -> Step:
        place = self.verifier_place(table)
        gate = table.min_reward
        return Step(
            name=table.name,
            instruction=strip_canary(self.files[f"steps/{table.name}/instruction.md"].content.decode()),
            agent=self.agent_phase(table),
            verifier=self.verifier_phase(table),
            artifacts=artifacts([*self.config.artifacts, *table.artifacts]),
            collect=hooks([*self.config.verifier.collect, *table.verifier.collect]),
            healthcheck=None if table.healthcheck is None else _healthcheck(table.healthcheck),
            min_reward={} if gate is None else dict(gate) if isinstance(gate, dict) else {"reward": gate},
            verifier_mode=place.mode,
            verifier_environment=place.environment,
            verifier_network=place.network,
            bundles_tests=place.bundles_tests,
        )


def artifacts(entries: Iterable[str | ArtifactTable]) -> tuple[Artifact, ...]:
    """Return declared artifacts as records, each once."""
    made = [
        Artifact(source=entry)
        if isinstance(entry, str)
        else Artifact(
            source=entry.source,
            destination=entry.destination,
            exclude=tuple(entry.exclude),
            service=None if entry.service == "main" else entry.service,
        )
        for entry in entries
    ]
    return tuple(dict.fromkeys(made))


def hooks(tables: Iterable[Collect]) -> tuple[CollectHook, ...]:
    """Return collect hooks as records."""
    return tuple(
        CollectHook(command=table.command, service=table.service, timeout_s=table.timeout_sec, user=table.user)
        for table in tables
    )


def _mode(table: VerifierTable) -> VerifierMode | None:
    if table.environment_mode is not None:
        return VerifierMode(table.environment_mode)
    return VerifierMode.SEPARATE if table.environment is not None else None


def _policy_of(table: PhaseTable | EnvironmentTable) -> NetworkPolicy | None:
    """Return the network that a table names itself, None where it says nothing."""
    mode = table.network_mode
    if mode is None and isinstance(table, EnvironmentTable) and table.allow_internet is not None:
        mode = table.mode()
    return (
        None if mode is None else NetworkPolicy(mode=NetworkMode(mode), allowed_hosts=tuple(table.allowed_hosts or ()))
    )


def _healthcheck(table: HealthcheckTable) -> Healthcheck:
    return Healthcheck(
        command=table.command,
        interval_s=table.interval_sec,
        timeout_s=table.timeout_sec,
        start_period_s=table.start_period_sec,
        start_interval_s=table.start_interval_sec,
        retries=table.retries,
    )


def _workdir(declared: str | None, dockerfile: TaskFile | None) -> str:
    """Return the declared directory, else the image's last absolute ``WORKDIR``, else ``/app``."""
    if declared is not None:
        return str(PurePosixPath(declared))
    found = _WORKDIR.findall(dockerfile.content.decode(errors="replace")) if dockerfile is not None else []
    return str(PurePosixPath(found[-1])) if found else _DEFAULT_WORKDIR
