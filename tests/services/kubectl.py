"""A real kubectl against the tests' double of a cluster."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.docker_engine import IMAGE

_PATIENCE_S = 30.0
_OLDEST = 31
"""Minor version from which on programs run over WebSockets."""


def kubectl_program() -> str:
    """Return the program's path; without one that is new enough the test is skipped, and fails in CI."""
    program, why = shutil.which("kubectl"), "kubectl is missing"
    if program is not None:
        said = subprocess.run([program, "version", "--client"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"v1\.(\d+)", said)
        if found and int(found[1]) >= _OLDEST:
            return program
        why = f"kubectl of version 1.{_OLDEST} or later is needed, this one says: {said}"
    if os.environ.get("CI"):  # noqa: TID251 - says whether a missing part may be skipped
        pytest.fail(why)
    pytest.skip(why)


class Kubectl:
    """One program and one kubeconfig."""

    def __init__(self, program: str, kubeconfig: str, home: Path) -> None:
        """Use a cluster; the program keeps what it discovers below ``home``."""
        self._argv = [program, "--kubeconfig", kubeconfig]
        self._environment = {**os.environ, "HOME": str(home)}  # noqa: TID251 - a program of the tests

    def __call__(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            [*self._argv, *arguments],
            input=stdin or "",
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=self._environment,
        )

    def ok(self, *arguments: str, stdin: object = None) -> str:
        """Run one command that succeeds; returns what it wrote. An object goes in as JSON."""
        done = self(*arguments, stdin=stdin if isinstance(stdin, str) else json.dumps(stdin))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *arguments: str, stdin: object = None) -> str:
        """Run one command that fails; returns its words."""
        done = self(*arguments, stdin=json.dumps(stdin))
        assert done.returncode != 0, done.stdout
        return done.stderr

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a command that goes on."""
        return subprocess.Popen([*self._argv, *arguments], stdout=subprocess.PIPE, text=True, env=self._environment)

    def run_pod(self, name: str, *command: str, **spec: object) -> None:
        """Make a pod and wait until it is ready."""
        self.ok("create", "-f", "-", stdin=pod(name, *command, **spec))
        self.ok("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=30s")

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object."""
        return json.loads(self.ok("get", kind, name, "-o", "json"))

    def status(self, name: str) -> dict[str, Any]:
        """Return a pod's status."""
        return self.get("pod", name)["status"]

    def state(self, name: str, kind: str) -> dict[str, Any]:
        """Return the state of a pod's container when it is of a kind, else nothing."""
        containers: list[dict[str, Any]] = self.status(name).get("containerStatuses") or [{}]
        return containers[0].get("state", {}).get(kind, {})


def pod(name: str, *command: str, owner: object = None, **spec: object) -> dict[str, Any]:
    """Return a pod; ``container`` is added to its container, everything else to its spec."""
    more: Any = spec.pop("container", {})
    one = {"name": "main", "image": IMAGE, "command": list(command), **more}
    about: dict[str, Any] = {"name": name, "labels": {"run": name}}
    if owner is not None:
        about["ownerReferences"] = [owner]
    whole = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [one], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": whole}


def until(met: Callable[[], Any]) -> Any:
    """Return what ``met`` gives as soon as it gives something."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while not (found := met()):
        assert time.monotonic() < deadline_s, "it never came"
        time.sleep(0.1)
    return found
