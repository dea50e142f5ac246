"""The objects of a box as they are sent: what the cluster's admission, scheduler and network see."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.sandboxes.kubernetes_cluster import Cluster, Coordinator, Toleration
from adapters.sandboxes.kubernetes_manifest import pod, policy
from domain.errors import ConfigurationError
from domain.ports import BoxSpec, Limits
from domain.records.task import NetworkMode, TaskEnvironment
from resources.kubernetes_settings import environment_of_cluster, read_cluster

_SNAPSHOT = Path(__file__).parents[1] / "golden" / "kubernetes_box.json"
_NOW_MS = 1_700_000_000_000
_IMAGE = "registry.example/task@sha256:" + "a" * 64
_FULL = Cluster(
    namespace="boxes",
    proxy_url="http://10.1.2.3:8080",
    node_selector=(("pool", "boxes"),),
    tolerations=(Toleration(key="dedicated", value="boxes", effect="NoSchedule"), Toleration(key="spot")),
    pull_secrets=("registry",),
    user=1000,
    gpu_resource="nvidia.com/gpu",
    coordinator=Coordinator(name="run-1", uid="0c0ffee0"),
)


def spec(**environment: Any) -> BoxSpec:
    """Return the spec of an agent's box."""
    return BoxSpec(
        box_id="01hxyz-actor",
        experiment_id="evl-1",
        trial_id="01hxyz",
        fence=3,
        deadline_ms=_NOW_MS + 90_500,
        environment=TaskEnvironment(**environment),
        limits=Limits(memory_mb=1024, disk_mb=512),
        model_access=True,
    )


def _stable(thing: dict[str, Any]) -> dict[str, Any]:
    """Return an object without what names this process."""
    note = json.loads(thing["metadata"]["annotations"]["synth/box"])
    kept = {key: note[key] for key in ("box_id", "trial_id", "fence", "deadline_ms", "owner_pod", "owner_pod_uid")}
    thing["metadata"]["annotations"]["synth/box"] = kept
    thing["metadata"]["labels"]["synth/owner"] = "this process"
    return thing


def test_a_box_with_everything_is_as_the_snapshot_has_it() -> None:
    """A change of the manifest is a change that somebody reads."""
    wanted = spec(
        docker_image=_IMAGE, cpus=2, memory_mb=1024, gpus=1, gpu_types=("H100",), network_mode=NetworkMode.PUBLIC
    )
    made = {"pod": _stable(pod(wanted, _FULL, _NOW_MS)), "policy": _stable(policy(wanted, _FULL))}
    assert json.loads(json.dumps(made)) == json.loads(_SNAPSHOT.read_text())


def test_a_box_with_a_user_meets_restricted_and_one_without_meets_baseline() -> None:
    """Source: Kubernetes, Pod Security Standards, the lists of both levels."""
    baseline = {
        "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
        "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
    }  # fmt: skip
    for cluster in (Cluster(), Cluster(user=7)):
        made = pod(spec(), cluster, _NOW_MS)["spec"]
        security = made["containers"][0]["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"]["drop"] == ["ALL"]
        assert set(security["capabilities"].get("add", ())) <= (baseline if cluster.user is None else set())
        assert made["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert made["securityContext"].get("runAsNonRoot") is (None if cluster.user is None else True)
        assert made["automountServiceAccountToken"] is False
        assert set(made) & {"hostNetwork", "hostPID", "hostIPC"} == set()


def test_each_network_mode_opens_what_it_needs() -> None:
    """Nothing, the proxy alone, or the public network without private ones; nobody reaches a box."""
    closed = spec(network_mode=NetworkMode.NO_NETWORK)
    alone = policy(replace(closed, model_access=False), _FULL)["spec"]
    assert (alone["egress"], alone["ingress"], alone["policyTypes"]) == ([], [], ["Ingress", "Egress"])
    (proxy,) = policy(closed, _FULL)["spec"]["egress"]
    assert proxy == {"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"protocol": "TCP", "port": 8080}]}
    service = replace(_FULL, proxy_url="http://proxy.synth:8080", proxy_pods=(("app", "proxy"),))
    pods, names = policy(closed, service)["spec"]["egress"]
    assert pods["to"][0]["podSelector"] == {"matchLabels": {"app": "proxy"}}
    assert {port["port"] for port in names["ports"]} == {53}
    public, _ = policy(replace(spec(), model_access=False), _FULL)["spec"]["egress"]
    assert public["to"][0]["ipBlock"] == {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}
    assert pod(closed, _FULL, _NOW_MS)["spec"]["dnsPolicy"] == "None"
    assert "dnsPolicy" not in pod(closed, service, _NOW_MS)["spec"]


def test_a_deadline_that_has_passed_is_the_janitors() -> None:
    """The pod's own deadline is counted from its start, and 0 is none."""
    assert pod(spec(), _FULL, _NOW_MS)["spec"]["activeDeadlineSeconds"] == 91
    assert "activeDeadlineSeconds" not in pod(spec(), _FULL, _NOW_MS + 10**6)["spec"]


def test_settings_come_back_from_what_is_handed_on() -> None:
    """A child process reads the same cluster."""
    assert read_cluster(environment_of_cluster(_FULL)) == _FULL
    assert read_cluster(environment_of_cluster(Cluster())) == Cluster()
    assert read_cluster({}) == Cluster()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SYNTH_KUBERNETES_PROXY_URL", "proxy:80"),
        ("SYNTH_KUBERNETES_PROXY_URL", "http://proxy:80"),
        ("SYNTH_KUBERNETES_PROXY_URL", "http://10.0.0.1:port"),
        ("SYNTH_KUBERNETES_PROXY_PODS", "app"),
        ("SYNTH_KUBERNETES_PRIVATE_NETWORKS", "10.0.0.0/33"),
        ("SYNTH_KUBERNETES_NODE_SELECTOR", "=x"),
        ("SYNTH_KUBERNETES_TOLERATIONS", "key=value:Never"),
        ("SYNTH_KUBERNETES_USER", "0"),
        ("SYNTH_KUBERNETES_USER", "agent"),
        ("SYNTH_KUBERNETES_REQUEST_SHARE", "2"),
        ("SYNTH_KUBERNETES_SCHEDULE_S", "soon"),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: str) -> None:
    """The message begins with the variable."""
    with pytest.raises(ConfigurationError, match=f"^{name}"):
        read_cluster({name: value})
