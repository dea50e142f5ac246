"""The tests' double of a cluster, checked by a real kubectl, and by what it is told to do wrong."""

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.pods import double
from tests.docker_engine import IMAGE
from tests.kubernetes_double.cluster import NAMESPACE, Double
from tests.kubernetes_double.state import Refused, selects

pytestmark = pytest.mark.timeout(180)
_PATIENCE_S = 30.0


class Kubectl:
    """A real kubectl against the double."""

    def __init__(self, cluster: Double, program: str) -> None:
        """Use a cluster's kubeconfig."""
        self.cluster = cluster
        self._argv = [program, "--kubeconfig", str(cluster.kubeconfig)]
        self._environment = {**os.environ, "HOME": str(cluster.kubeconfig.parent)}  # noqa: TID251 - a program of the tests

    def __call__(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            [*self._argv, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=self._environment,
        )

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a command that goes on."""
        argv = [*self._argv, *arguments]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=self._environment)

    def run_pod(self, name: str, *command: str, overrides: object = None) -> None:
        """Run a pod until it is ready."""
        more = [] if overrides is None else ["--overrides", json.dumps(overrides)]
        made = self("run", name, f"--image={IMAGE}", "--restart=Never", *more, "--command", "--", *command)
        assert made.returncode == 0, made.stderr
        ready = self("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=30s")
        assert ready.returncode == 0, ready.stderr


@pytest.fixture
def kubectl() -> Generator[Kubectl]:
    """The program; without it the test is skipped, and fails in CI. Its pods are gone afterwards."""
    program = shutil.which("kubectl")
    if program is None:
        if os.environ.get("CI"):  # noqa: TID251 - says whether a missing part may be skipped
            pytest.fail("kubectl is missing")
        pytest.skip("kubectl is missing")
    found = Kubectl(double(), program)
    yield found
    found("delete", "pods", "--all", "--grace-period=0", "--force")
    found("delete", "networkpolicies", "--all")
    found("delete", "resourcequotas", "--all")


def until(met: Callable[[], Any]) -> Any:
    """Return what ``met`` gives as soon as it gives something."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while not (found := met()):
        assert time.monotonic() < deadline_s, "it never came"
        time.sleep(0.1)
    return found


def status_of(kubectl: Kubectl, name: str) -> dict[str, Any]:
    """Return a pod's status."""
    return json.loads(kubectl("get", "pod", name, "-o", "json").stdout)["status"]


def waiting_for(kubectl: Kubectl, name: str) -> str:
    """Return why a pod's container waits, empty when it does not."""
    containers: list[dict[str, Any]] = status_of(kubectl, name).get("containerStatuses") or []
    return str(containers[0]["state"].get("waiting", {}).get("reason", "")) if containers else ""


def spec_of(container: object) -> str:
    """Return what overrides a pod's containers."""
    return json.dumps({"spec": {"containers": [container]}})


def test_programs_files_and_logs(kubectl: Kubectl, tmp_path: Path) -> None:
    """Exit codes, both outputs apart, input, copies both ways, logs as they come, and the end within its grace."""
    kubectl.run_pod("one", "sh", "-c", "echo begun; trap 'echo ended; exit 0' TERM; while :; do sleep 0.1; done")
    told = kubectl("exec", "one", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (told.returncode, told.stdout) == (3, "out\n")
    assert told.stderr.startswith("err\n")
    assert kubectl("exec", "-i", "one", "--", "cat", stdin="hello\n" * 1000).stdout == "hello\n" * 1000
    (tmp_path / "sent").write_text("data")
    assert kubectl("cp", str(tmp_path / "sent"), "one:/tmp/a name").returncode == 0
    assert kubectl("cp", "one:/tmp/a name", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back").read_text() == "data"
    following = kubectl.start("logs", "-f", "one")
    watching = kubectl.start("get", "pods", "-w", "-o", "jsonpath={.status.phase} ")
    assert kubectl("delete", "pod", "one", "--grace-period=5").returncode == 0
    assert following.communicate(timeout=30)[0] == "begun\nended\n"
    watching.terminate()
    assert "Running" in watching.communicate(timeout=30)[0]
    assert kubectl("get", "pod", "one").returncode == 1
    events = json.loads(kubectl("get", "events", "-o", "json").stdout)["items"]
    assert {"Scheduled", "Started"} <= {event["reason"] for event in events}


def test_what_becomes_of_pods_has_the_real_names(kubectl: Kubectl) -> None:
    """An unknown image, a node that is too small, too much memory, a deadline, an end of its own."""
    bare = ["--restart=Never", "--command", "--"]
    kubectl("run", "lost", "--image=no/such:image", *bare, "true")
    until(lambda: waiting_for(kubectl, "lost") == "ErrImagePull")
    until(lambda: waiting_for(kubectl, "lost") == "ImagePullBackOff")
    wide = {"name": "wide", "image": IMAGE, "resources": {"requests": {"cpu": "400"}}}
    kubectl("run", "wide", f"--image={IMAGE}", "--restart=Never", "--overrides", spec_of(wide))
    scheduled = until(lambda: status_of(kubectl, "wide").get("conditions"))[0]
    assert (scheduled["reason"], "Insufficient cpu" in scheduled["message"]) == ("Unschedulable", True)
    hungry = "x=x; while :; do x=$x$x; done"
    small = {
        "name": "fat",
        "image": IMAGE,
        "command": ["sh", "-c", hungry],
        "resources": {"limits": {"memory": "32Mi"}},
    }
    kubectl(
        "run",
        "fat",
        f"--image={IMAGE}",
        "--restart=Never",
        "--overrides",
        json.dumps({"spec": {"containers": [small]}}),
    )
    until(lambda: status_of(kubectl, "fat")["phase"] == "Failed")
    (fat,) = status_of(kubectl, "fat")["containerStatuses"]
    assert (fat["state"]["terminated"]["reason"], fat["state"]["terminated"]["exitCode"]) == ("OOMKilled", 137)
    kubectl.run_pod("late", "sleep", "60", overrides={"spec": {"activeDeadlineSeconds": 3}})
    until(lambda: status_of(kubectl, "late").get("reason") == "DeadlineExceeded")
    kubectl("run", "brief", f"--image={IMAGE}", *bare, "true")
    until(lambda: status_of(kubectl, "brief")["phase"] == "Succeeded")


def test_what_a_cluster_refuses(kubectl: Kubectl) -> None:
    """Names twice, unknown fields, quota, PodSecurity, a wrong uid, a policy without a selector."""
    kubectl.run_pod("one", "sleep", "60")
    assert "AlreadyExists" in kubectl("run", "one", f"--image={IMAGE}").stderr
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "odd"},
        "spec": {"containers": [], "nodeNme": "x"},
    }
    assert "nodeNme" in kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(pod)).stderr
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    assert kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(quota)).returncode == 0
    assert "exceeded quota: few" in kubectl("run", "two", f"--image={IMAGE}").stderr
    kubectl("delete", "resourcequota", "few")
    enforce = "pod-security.kubernetes.io/enforce"
    space = json.dumps({"metadata": {"labels": {enforce: "restricted"}}})
    assert kubectl("patch", "namespace", NAMESPACE, "--type=merge", "-p", space).returncode == 0
    try:
        assert 'violates PodSecurity "restricted:latest"' in kubectl("run", "two", f"--image={IMAGE}").stderr
    finally:
        kubectl(
            "patch", "namespace", NAMESPACE, "--type=merge", "-p", json.dumps({"metadata": {"labels": {enforce: None}}})
        )
    policy: dict[str, Any] = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "closed"},
        "spec": {"podSelector": {}, "policyTypes": ["Egress"]},
    }
    assert kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(policy)).returncode == 0
    del policy["spec"]["podSelector"]
    policy["metadata"]["name"] = "open"
    assert "podSelector" in kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(policy)).stderr


def test_faults_come_as_they_are_asked_for(kubectl: Kubectl) -> None:
    """Eviction, a lost node, refused requests, versions that are forgotten; an owner's end takes what it owns."""
    cluster = kubectl.cluster
    faults = cluster.server.faults
    faults.answers.append(("GET", "pods", Refused(500, "InternalError", "etcd is away")))
    assert "etcd is away" in kubectl("get", "pods").stderr
    assert kubectl("get", "pods").returncode == 0
    kubectl.run_pod("one", "sleep", "60")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "one", "uid": cluster.pod("one")["metadata"]["uid"]}
    kubectl.run_pod("owned", "sleep", "60", overrides={"metadata": {"ownerReferences": [owner]}})
    kubectl("delete", "pod", "one", "--grace-period=0", "--force")
    until(lambda: kubectl("get", "pod", "owned").returncode == 1)
    kubectl.run_pod("two", "sleep", "60")
    cluster.call(cluster.node.evict(cluster.pod("two"), "The node was low on resource: memory."))
    assert (status_of(kubectl, "two")["phase"], status_of(kubectl, "two")["reason"]) == ("Failed", "Evicted")
    watching = kubectl.start("get", "pods", "-w")
    time.sleep(1)
    cluster.call(_expired(cluster))
    watching.communicate(timeout=30)
    with pytest.raises(Refused, match="too old"):
        cluster.state.watch("pods", "1")
    kubectl.run_pod("three", "sleep", "60")
    cluster.call(cluster.node.lose("node-1"))
    try:
        assert status_of(kubectl, "three")["reason"] == "NodeLost"
    finally:
        node = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        assert kubectl("patch", "node", "node-1", "--type=merge", "-p", json.dumps(node)).returncode == 0


async def _expired(cluster: Double) -> None:
    cluster.state.expire(politely=True)
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        ("a=1", True),
        ("a=2", False),
        ("a!=2,b", True),
        ("a in (1, 3)", True),
        ("a notin (1,3)", False),
        ("!c", True),
        ("c", False),
    ],
)
def test_labels_select(selector: str, *, chosen: bool) -> None:
    """Equality, sets and presence."""
    assert selects({"metadata": {"labels": {"a": "1", "b": "2"}}}, selector, "") is chosen
