"""The tests' double of a cluster, checked by a real kubectl, and by what it is told to do wrong."""

import asyncio
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from adapters.sandboxes.kubernetes_cluster import Cluster
from adapters.sandboxes.kubernetes_link import link_to
from tests.contracts.pods import double
from tests.docker_engine import IMAGE, client, docker_url
from tests.kubernetes_double.control import Control
from tests.kubernetes_double.double import KubernetesDouble
from tests.kubernetes_double.quantities import amount
from tests.kubernetes_double.selectors import matcher
from tests.services.kubectl import Kubectl, kubectl_program, pod, until

pytestmark = pytest.mark.timeout(180)
_ENFORCE = "pod-security.kubernetes.io/enforce"
_NO_MOUNTS: dict[str, Any] = {"volumeMounts": []}


@pytest.fixture(scope="module", name="home")
def _home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kubectl")


@pytest.fixture
def kubectl(home: Path) -> Generator[Kubectl]:
    """The program on the session's double; what a test made is gone afterwards."""
    found = Kubectl(kubectl_program(), double().kubeconfig, home)
    yield found
    double().control.unanswer()
    found("delete", "pods,networkpolicies,resourcequotas", "--all", "--grace-period=0", "--force")


@pytest.fixture
def control(kubectl: Kubectl) -> Control:
    """What goes wrong in that cluster."""
    del kubectl
    return double().control


# --- kubectl ---------------------------------------------------------------------------------------


def test_programs_files_and_logs(kubectl: Kubectl, tmp_path: Path) -> None:
    """Exit codes, both outputs apart, input and its end, copies both ways, logs as they come, the end in its grace."""
    script = "echo begun; trap 'echo ended; exit 0' TERM; while :; do sleep 0.1; done"
    kubectl.ok("run", "one", f"--image={IMAGE}", "--restart=Never", "--command", "--", "sh", "-c", script)
    kubectl.ok("wait", "--for=condition=Ready", "pod/one", "--timeout=30s")
    told = kubectl("exec", "one", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (told.returncode, told.stdout) == (3, "out\n")
    assert told.stderr == "err\ncommand terminated with exit code 3\n"
    assert kubectl.ok("exec", "-i", "one", "--", "sha256sum", stdin="hello\n").startswith("5891b5b522d5df08")
    assert "executable file not found in $PATH" in kubectl.refused("exec", "one", "--", "no-such-program")
    (tmp_path / "sent").write_text("data" * 100_000)
    kubectl.ok("cp", str(tmp_path / "sent"), "one:/tmp/a name")
    kubectl.ok("cp", "one:/tmp/a name", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "data" * 100_000
    assert kubectl.ok("logs", "one") == "begun\n"
    following = kubectl.start("logs", "-f", "one")
    watching = kubectl.start("get", "pods", "-w", "-o", "jsonpath={.status.phase}{.metadata.deletionTimestamp} ")
    kubectl.ok("delete", "pod", "one", "--grace-period=5")
    assert following.communicate(timeout=30)[0] == "begun\nended\n"
    watching.terminate()
    seen = watching.communicate(timeout=30)[0].split()
    assert seen[0].startswith("Running")
    assert seen[-1].startswith("Succeeded")
    assert "NotFound" in kubectl.refused("get", "pod", "one")
    told_of = kubectl.ok("get", "events", "--field-selector=involvedObject.name=one")
    assert all(reason in told_of for reason in ("Scheduled", "Pulled", "Started", "Killing"))


def test_what_kubectl_shows_of_pods(kubectl: Kubectl) -> None:
    """Columns, selectors, pages of a listing, and a watch whose object begins and ceases to match."""
    for name in ("a", "b", "c"):
        kubectl.ok("create", "-f", "-", stdin=pod(name, "sleep", "60"))
    kubectl.ok("wait", "--for=condition=Ready", "pod", "--all", "--timeout=30s")
    rows = kubectl.ok("get", "pods", "--no-headers", "--chunk-size=1").splitlines()
    assert [row.split()[:4] for row in rows] == [[name, "1/1", "Running", "0"] for name in "abc"]
    assert kubectl.ok("get", "pods", "-l", "run in (a,b),run!=b", "-o", "name") == "pod/a\n"
    assert kubectl.ok("get", "pods", "--field-selector", "metadata.name=c", "-o", "name") == "pod/c\n"
    watching = kubectl.start("get", "pods", "-w", "-l", "is=here", "--output-watch-events", "--no-headers")
    time.sleep(1)
    kubectl.ok("label", "pod", "a", "is=here")
    kubectl.ok("label", "pod", "a", "is-")
    time.sleep(0.5)
    watching.terminate()
    assert [row.split()[0] for row in watching.communicate(timeout=30)[0].splitlines()] == ["ADDED", "DELETED"]
    assert "cpu" in kubectl.ok("describe", "node")


def _policy(peer: object) -> dict[str, Any]:
    spec = {"podSelector": {"matchLabels": {"run": "one"}}, "policyTypes": ["Egress"], "egress": [{"to": [peer]}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "some"},
        "spec": spec,
    }


def test_policies_are_applied_and_looked_at(kubectl: Kubectl) -> None:
    """Made and changed by ``apply``; a block that is none and an exception outside of its block are told by field."""
    open_to = {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}}
    assert "created" in kubectl.ok("apply", "-f", "-", stdin=_policy(open_to))
    assert "unchanged" in kubectl.ok("apply", "-f", "-", stdin=_policy(open_to))
    assert "configured" in kubectl.ok("apply", "-f", "-", stdin=_policy({"ipBlock": {"cidr": "10.1.2.3/32"}}))
    kept = kubectl.get("networkpolicy", "some")["spec"]
    assert kept["egress"] == [{"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}]}]
    for block in ({"cidr": "10.0.0.0/33"}, {"cidr": "10.0.0.0/8", "except": ["192.168.0.0/16"]}):
        assert "spec.egress[0].to[0].ipBlock" in kubectl.refused("apply", "-f", "-", stdin=_policy({"ipBlock": block}))


async def test_nobody_keeps_what_the_other_side_does_not_take(kubectl: Kubectl) -> None:
    """A program that writes waits for a client that does not read, and a client waits for a program that does not."""
    box = {"name": "box"}
    await asyncio.to_thread(lambda: kubectl.run_pod("one", "sleep", "60", container=box))
    link = link_to(Cluster(kubeconfig=double().kubeconfig))

    async def stall(script: str, sent: bytes, seconds: float) -> None:
        api, _ = await link.open()
        async with api.exec("one", ["sh", "-c", script]) as socket, asyncio.timeout(seconds):
            while True:
                await (socket.send_bytes(b"\0" + sent) if sent else asyncio.sleep(1))

    writing = "n=0; while head -c 1000000 /dev/zero; do n=$((n + 1)); echo $n >/tmp/n; done"
    stalled = asyncio.create_task(link.loop.call(stall(writing, b"", 2.5)))
    await asyncio.sleep(1)
    counts: list[str] = []
    for _ in range(2):
        counts.append(await asyncio.to_thread(kubectl.ok, "exec", "one", "--", "cat", "/tmp/n"))
        await asyncio.sleep(0.5)
    assert counts[0] == counts[1], counts
    with pytest.raises(TimeoutError):
        await stalled
    began = _resident()
    with pytest.raises(TimeoutError):
        await link.loop.call(stall("sleep 60", b"x" * 1_000_000, 1.5))
    assert _resident() - began < 100 << 20


def _resident() -> int:
    """Return this process's memory in bytes."""
    return psutil.Process().memory_info().rss


# --- what becomes of pods --------------------------------------------------------------------------


def test_how_pods_end(kubectl: Kubectl) -> None:
    """By themselves, with a code, too much memory, a deadline; one that is to go on is started again."""
    small = {"resources": {"limits": {"memory": "32Mi"}}}
    made = [
        pod("good", "true"),
        pod("bad", "sh", "-c", "exit 4"),
        pod("fat", "tail", "/dev/zero", container=small),
        pod("late", "sleep", "60", activeDeadlineSeconds=2),
        pod("again", "sh", "-c", "exit 1", restartPolicy="OnFailure"),
    ]
    for each in made:
        kubectl.ok("create", "-f", "-", stdin=each)
    ends = {"good": ("Completed", 0), "bad": ("Error", 4), "fat": ("OOMKilled", 137), "late": ("Error", 137)}
    for name, end in ends.items():
        state = until(lambda name=name: kubectl.state(name, "terminated"))
        assert (state["reason"], state["exitCode"]) == end
        assert kubectl.status(name)["phase"] == ("Succeeded" if name == "good" else "Failed")
    assert kubectl.status("late")["reason"] == "DeadlineExceeded"
    until(lambda: kubectl.status("again")["containerStatuses"][0]["restartCount"] >= 1)
    ready = {each["type"]: each for each in kubectl.status("good")["conditions"]}
    assert (ready["Ready"]["status"], ready["Ready"]["reason"]) == ("False", "PodCompleted")


def test_a_process_without_memory_takes_its_pod_along(kubectl: Kubectl) -> None:
    """As on a node with control groups of version 2: the limit is the container's."""
    kubectl.run_pod("one", "sleep", "60", container={"resources": {"limits": {"memory": "32Mi"}}})
    kubectl.refused("exec", "one", "--", "tail", "/dev/zero")
    state = until(lambda: kubectl.state("one", "terminated"))
    assert (state["reason"], state["exitCode"]) == ("OOMKilled", 137)


def test_pods_that_do_not_run(kubectl: Kubectl, control: Control) -> None:
    """An unknown image, one of no possible name, a node that has no room, and an image that takes its time."""
    kubectl.ok("create", "-f", "-", stdin=pod("lost", container={"image": "nobody.invalid/none:1"}))
    kubectl.ok("create", "-f", "-", stdin=pod("odd", container={"image": "A/b"}))
    until(lambda: kubectl.state("lost", "waiting").get("reason") == "ErrImagePull")
    until(lambda: kubectl.state("lost", "waiting").get("reason") == "ImagePullBackOff")
    assert kubectl.state("odd", "waiting")["reason"] == "InvalidImageName"
    kubectl.ok("create", "-f", "-", stdin=pod("wide", container={"resources": {"requests": {"cpu": "400"}}}))
    (condition,) = until(lambda: kubectl.status("wide").get("conditions"))
    assert (condition["reason"], "1 Insufficient cpu" in condition["message"]) == ("Unschedulable", True)
    kubectl.ok("create", "-f", "-", stdin=pod("elsewhere", nodeSelector={"pool": "none"}))
    assert "affinity/selector" in until(lambda: kubectl.status("elsewhere").get("conditions"))[0]["message"]
    control.delay_pulls(2)
    try:
        kubectl.ok("create", "-f", "-", stdin=pod("slow", "sleep", "60"))
        assert kubectl.state("slow", "waiting")["reason"] == "ContainerCreating"
    finally:
        control.delay_pulls(0)
    kubectl.ok("wait", "--for=condition=Ready", "pod/slow", "--timeout=30s")


def test_a_pod_waits_for_room(kubectl: Kubectl) -> None:
    """It is bound when another one has gone."""
    cpus = int(amount(kubectl.get("node", "double")["status"]["allocatable"]["cpu"]))
    whole = {"resources": {"requests": {"cpu": str(cpus)}}}
    kubectl.run_pod("first", "sleep", "60", container=whole)
    kubectl.ok("create", "-f", "-", stdin=pod("second", "sleep", "60", container=whole))
    assert "Insufficient cpu" in until(lambda: kubectl.status("second").get("conditions"))[0]["message"]
    kubectl.ok("delete", "pod", "first")
    kubectl.ok("wait", "--for=condition=Ready", "pod/second", "--timeout=30s")


def test_a_pod_is_as_its_spec_says(kubectl: Kubectl) -> None:
    """User, groups, capabilities, privileges, variables, directories, names; and it reaches this machine."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "args": ["60"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2"}],
        "workingDir": "/w",
        "securityContext": security,
        "volumeMounts": [{"name": "w", "mountPath": "/w"}],
    }
    whole = {"runAsUser": 1234, "runAsGroup": 1235, "fsGroup": 1236, "runAsNonRoot": True}
    volumes: list[dict[str, Any]] = [{"name": "w", "emptyDir": {}}]
    kubectl.run_pod("one", "sleep", hostname="box", volumes=volumes, securityContext=whole, container=container)
    script = (
        "id -u; id -g; id -G; echo $B; pwd; hostname; touch new; stat -c %g new;"
        "grep -E 'CapEff|NoNewPrivs' /proc/self/status | cut -f2; echo $KUBERNETES_SERVICE_HOST"
    )
    said = kubectl.ok("exec", "one", "--", "sh", "-c", script).splitlines()
    assert said[:2] == ["1234", "1235"]
    assert set(said[2].split()) == {"1235", "1236"}
    assert said[3:-1] == ["12", "/w", "box", "1236", "0000000000000000", "1"]
    dial = "exec 3<>/dev/tcp/$KUBERNETES_SERVICE_HOST/$KUBERNETES_SERVICE_PORT"
    kubectl.ok("exec", "one", "--", "timeout", "5", "bash", "-c", dial)
    assert kubectl.status("one")["podIP"] == kubectl.ok("exec", "one", "--", "hostname", "-I").strip()


def test_a_read_only_root_leaves_the_volumes(kubectl: Kubectl) -> None:
    """Directories of both media are anyone's to write to; one in memory is as large as it says and no larger."""
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("disk", "quick")]
    security = {"readOnlyRootFilesystem": True, "runAsUser": 1000, "capabilities": {"drop": ["ALL"]}}
    quick = {"name": "quick", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}
    volumes: list[dict[str, Any]] = [{"name": "disk", "emptyDir": {}}, quick]
    container = {"securityContext": security, "volumeMounts": mounts}
    kubectl.run_pod("one", "sleep", "60", volumes=volumes, container=container)
    script = "touch /disk/a /quick/a; touch /b 2>&1; df -k --output=size /quick; head -c 9M /dev/zero 2>&1 >/quick/c"
    said = kubectl.ok("exec", "one", "--", "sh", "-c", f"{script}; true")
    assert "'/b': Read-only file system" in said
    assert "\n     8192\n" in said
    assert "No space left on device" in said


def test_secrets_and_config_maps_are_files(kubectl: Kubectl) -> None:
    """With their modes and chosen keys, never to be written; a pod waits for one that is not there yet."""
    volumes: list[dict[str, Any]] = [
        {"name": "s", "secret": {"secretName": "some", "defaultMode": 0o440}},
        {"name": "c", "configMap": {"name": "some", "items": [{"key": "k", "path": "below/it"}]}},
        {"name": "n", "secret": {"secretName": "never", "optional": True}},
    ]
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in "scn"]
    made = pod("one", "sleep", "60", volumes=volumes, container={"volumeMounts": mounts})
    kubectl.ok("create", "-f", "-", stdin=made)
    told = until(lambda: kubectl.ok("get", "events", "--field-selector=reason=FailedMount"))
    assert 'MountVolume.SetUp failed for volume "s" : secret "some" not found' in told
    assert kubectl.state("one", "waiting")["reason"] == "ContainerCreating"
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "some"}, "stringData": {"k": "ü"}}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "some"}, "data": {"k": "v", "other": ""}}
    for each in (secret, config):
        kubectl.ok("create", "-f", "-", stdin=each)
    try:
        kubectl.ok("wait", "--for=condition=Ready", "pod/one", "--timeout=30s")
        script = "cat /s/k /c/below/it; stat -c %a /s/k; ls -A /c /n; touch /s/k 2>&1; true"
        said = kubectl.ok("exec", "one", "--", "sh", "-c", script).splitlines()
        assert said[:5] == ["üv440", "/c:", "below", "", "/n:"]
        assert "Read-only file system" in said[5]
    finally:
        kubectl.ok("delete", "secret/some", "configmap/some")


def test_containers_before_a_pod(kubectl: Kubectl) -> None:
    """They run one after the other to their ends, have logs and share volumes; one that fails ends the pod."""
    mount = {"volumeMounts": [{"name": "w", "mountPath": "/w"}]}
    volumes: list[dict[str, Any]] = [{"name": "w", "emptyDir": {}}]

    def first(name: str, script: str) -> dict[str, Any]:
        return {"name": name, "image": IMAGE, "command": ["sh", "-c", script], **mount}

    firsts = [first("a", "echo one >> /w/x; echo said; sleep 2"), first("b", "echo two >> /w/x")]
    made = pod("good", "sh", "-c", "cat /w/x; sleep 60", volumes=volumes, initContainers=firsts, container=mount)
    kubectl.ok("create", "-f", "-", stdin=made)
    until(lambda: "Init:0/2" in kubectl.ok("get", "pod", "good", "--no-headers"))
    assert kubectl.state("good", "waiting")["reason"] == "PodInitializing"
    initialized = [each for each in kubectl.status("good")["conditions"] if each["type"] == "Initialized"]
    assert (initialized[0]["status"], initialized[0]["reason"]) == ("False", "ContainersNotInitialized")
    kubectl.ok("wait", "--for=condition=Ready", "pod/good", "--timeout=30s")
    assert kubectl.ok("logs", "good") == "one\ntwo\n"
    assert kubectl.ok("logs", "good", "-c", "a") == "said\n"
    assert [each["ready"] for each in kubectl.status("good")["initContainerStatuses"]] == [True, True]
    kubectl.ok("create", "-f", "-", stdin=pod("bad", "true", initContainers=[{**first("a", "exit 3"), **_NO_MOUNTS}]))
    status = until(lambda: kubectl.status("bad")["phase"] == "Failed" and kubectl.status("bad"))
    assert status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert "waiting" in status["containerStatuses"][0]["state"]
    assert kubectl.ok("get", "pod", "bad", "--no-headers").split()[2] == "Init:Error"
    long = pod("long", "true", initContainers=[{**first("a", "sleep 60"), **_NO_MOUNTS}], activeDeadlineSeconds=1)
    kubectl.ok("create", "-f", "-", stdin=long)
    until(lambda: kubectl.status("long").get("reason") == "DeadlineExceeded")


def test_what_the_double_cannot_do_is_refused(kubectl: Kubectl) -> None:
    """Nothing that a pod asks for is left out in silence."""
    mounts = [{"name": "v", "mountPath": "/v", "subPath": "x"}]
    asks: dict[str, dict[str, Any]] = {
        "no volumes of kind hostPath": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
        "no subPath": {"volumes": [{"name": "v", "emptyDir": {}}], "container": {"volumeMounts": mounts}},
        "no valueFrom": {"container": {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]}},
    }
    for words, spec in asks.items():
        assert words in kubectl.refused("create", "-f", "-", stdin=pod("one", "true", **spec))


# --- what a cluster refuses ------------------------------------------------------------------------


def test_what_a_cluster_refuses(kubectl: Kubectl) -> None:
    """Names twice, unknown and wrong fields, quota."""
    kubectl.run_pod("one", "sleep", "60")
    assert "AlreadyExists" in kubectl.refused("create", "-f", "-", stdin=pod("one"))
    assert 'unknown field "spec.nodeNme"' in kubectl.refused("create", "-f", "-", stdin=pod("odd", nodeNme="x"))
    words = kubectl.refused("create", "-f", "-", stdin=pod("odd", container={"image": ""}, activeDeadlineSeconds=0))
    assert 'The Pod "odd" is invalid' in words
    assert "spec.containers[0].image: Required value" in words
    assert "spec.activeDeadlineSeconds: Invalid value: 0" in words
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    kubectl.ok("create", "-f", "-", stdin=quota)
    words = "exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1"
    assert words in kubectl.refused("create", "-f", "-", stdin=pod("two"))


def test_levels_of_pod_security(kubectl: Kubectl) -> None:
    """A namespace says what it admits; what it does not is told in full."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict"}}
    kubectl.ok("create", "-f", "-", stdin=namespace)
    try:
        kubectl.ok("label", "namespace", "strict", f"{_ENFORCE}=restricted")
        words = kubectl.refused("create", "-n", "strict", "-f", "-", stdin=pod("one", "true"))
        assert 'pods "one" is forbidden: violates PodSecurity "restricted:latest"' in words
        for part in (
            "allowPrivilegeEscalation != false",
            "unrestricted capabilities",
            "runAsNonRoot",
            "seccompProfile",
        ):
            assert part in words
        own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        whole = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
        meek = pod("one", "true", securityContext=whole, container={"securityContext": own})
        kubectl.ok("create", "-n", "strict", "-f", "-", stdin=meek)
        kubectl.ok("label", "namespace", "strict", f"{_ENFORCE}=baseline", "--overwrite")
        wild = pod("two", "true", container={"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}})
        assert "non-default capabilities" in kubectl.refused("create", "-n", "strict", "-f", "-", stdin=wild)
    finally:
        kubectl.ok("delete", "namespace", "strict")
    assert "NotFound" in kubectl.refused("get", "pod", "one", "-n", "strict")


def test_rights(kubectl: Kubectl, control: Control) -> None:
    """A right that is taken away is refused, and told beforehand."""
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    review = {"kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": {"verb": "create", "resource": "pods"}}}
    assert '"allowed": true' in kubectl.ok("create", "--raw", path, "-f", "-", stdin=review)
    control.deny("create", "pods")
    assert '"allowed": false' in kubectl.ok("create", "--raw", path, "-f", "-", stdin=review)
    assert 'User "tests" cannot create resource "pods"' in kubectl.refused("create", "-f", "-", stdin=pod("one"))


# --- what goes wrong -------------------------------------------------------------------------------


def test_answers_that_a_test_orders(kubectl: Kubectl, control: Control) -> None:
    """429 is waited out, 500 and a dropped connection are told; each as often as it was ordered."""
    control.answer("GET", r"/pods\?", 500, message="etcd is away")
    assert "etcd is away" in kubectl.refused("get", "pods")
    control.answer("GET", r"/pods\?", 429, retry_after_s=1)
    began_s = time.monotonic()
    kubectl.ok("get", "pods")
    assert time.monotonic() - began_s >= 1
    control.drop("POST", "/pods")
    assert "EOF" in kubectl.refused("create", "-f", "-", stdin=pod("one", "true"))
    assert "NotFound" in kubectl.refused("get", "pod", "one")
    control.drop("POST", "/pods", done=True)
    assert "EOF" in kubectl.refused("create", "-f", "-", stdin=pod("one", "true"))
    kubectl.ok("get", "pod", "one")


def test_pods_that_the_node_ends(kubectl: Kubectl, control: Control) -> None:
    """Eviction; a node that starts anew; a node that is lost keeps its pods Terminating until it is back."""
    for name in ("low", "cut", "far"):
        kubectl.run_pod(name, "sleep", "60")
    control.evict("low")
    status = kubectl.status("low")
    assert (status["phase"], status["reason"], "low on resource" in status["message"]) == ("Failed", "Evicted", True)
    kubectl.ok("delete", "pod", "low")
    control.restart_node()
    assert until(lambda: kubectl.state("cut", "terminated"))["exitCode"] == 255
    assert kubectl.ok("get", "pod", "cut", "--no-headers").split()[2] == "Error"
    kubectl.run_pod("gone", "sleep", "60")
    control.lose_node()
    try:
        assert "NotReady" in kubectl.ok("get", "nodes")
        given_up = [each for each in kubectl.status("gone")["conditions"] if each["type"] == "DisruptionTarget"]
        assert given_up[0]["reason"] == "DeletionByTaintManager"
        assert "error dialing backend" in kubectl.refused("exec", "gone", "--", "true")
        assert kubectl.ok("get", "pod", "gone", "--no-headers").split()[2] == "Terminating"
    finally:
        control.find_node()
    kubectl.ok("wait", "--for=delete", "pod/gone", "--timeout=30s")
    kubectl.run_pod("next", "sleep", "60")


def test_versions_that_are_forgotten(kubectl: Kubectl, control: Control) -> None:
    """A watch ends with 410, and none goes on from there."""
    version = kubectl.get("node", "double")["metadata"]["resourceVersion"]
    watching = kubectl.start("get", "--raw", "/api/v1/namespaces/default/pods?watch=true")
    time.sleep(1)
    control.expire_watches()
    assert '"code": 410' in watching.communicate(timeout=30)[0]
    old = f"/api/v1/pods?watch=true&resourceVersion={version}"
    assert "too old resource version" in kubectl.refused("get", "--raw", old)


def test_what_belonged_to_a_pod_goes_with_it(kubectl: Kubectl) -> None:
    """Also what names an owner that is not there."""
    kubectl.run_pod("one", "sleep", "60")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "one", "uid": kubectl.get("pod", "one")["metadata"]["uid"]}
    kubectl.ok("create", "-f", "-", stdin=pod("owned", "sleep", "60", owner=owner))
    kubectl.ok("create", "-f", "-", stdin=pod("stray", "sleep", "60", owner={**owner, "uid": "nobody"}))
    until(lambda: kubectl("get", "pod", "stray").returncode == 1)
    kubectl.ok("delete", "pod", "one", "--grace-period=0", "--force")
    until(lambda: kubectl("get", "pod", "owned").returncode == 1)


def test_nothing_is_left_of_a_double(home: Path) -> None:
    """Neither of one that is stopped, nor, when the next one starts, of one whose process died."""
    engine: Any = client(docker_url())
    label = "synth.kubernetes-double"
    dead = engine.create_container(IMAGE, "true", labels={label: "another boot/1/1/x"})["Id"]
    with KubernetesDouble(docker_url()) as second:
        assert dead not in [one["Id"] for one in engine.containers(all=True, filters={"label": label})]
        directory: dict[str, Any] = {"volumes": [{"name": "v", "emptyDir": {}}]}
        Kubectl(kubectl_program(), second.kubeconfig, home).run_pod("one", "sleep", "60", **directory)
        (pods,) = [second.cluster.kubelet.place.labels]
        mine = {"label": f"{label}={pods[label]}"}
        assert len(engine.containers(all=True, filters=mine)) == 1
        assert len(engine.volumes(filters=mine)["Volumes"]) == 1
    assert engine.containers(all=True, filters=mine) == []
    assert not engine.volumes(filters=mine)["Volumes"]
    assert not Path(second.kubeconfig).exists()


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        ("a=1", True),
        ("a==1,b", True),
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
    assert matcher(selector, "")({"metadata": {"labels": {"a": "1", "b": "2"}}}) is chosen
