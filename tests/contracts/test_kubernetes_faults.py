"""What Kubernetes says about a pod or a request has one name each, whatever words stand around it."""

import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from adapters.sandboxes import kubernetes_faults as faults
from domain.errors import SandboxError


def pod(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod with a status."""
    return {"metadata": {"name": "p", "uid": "u"}, "status": dict(status)}


def waiting(reason: str) -> dict[str, Any]:
    """Return a pod whose container waits."""
    state = {"waiting": {"reason": reason, "message": "words"}}
    return pod({"phase": "Pending", "containerStatuses": [{"state": state}]})


def ended(why: str, code: int, **status: str) -> dict[str, Any]:
    """Return a pod whose container has ended."""
    state = {"terminated": {"reason": why, "exitCode": code}}
    return pod({"phase": "Failed", "containerStatuses": [{"state": state}], **status})


def disrupted(reason: str) -> dict[str, Any]:
    """Return a pod that is to be given up."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    return pod({"phase": "Running", "conditions": [condition]})


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("ErrImagePull", faults.ImageUnavailableError),
        ("ImagePullBackOff", faults.ImageUnavailableError),
        ("ErrImageNeverPull", faults.ImageUnavailableError),
        ("InvalidImageName", faults.ImageNameError),
        ("CreateContainerConfigError", faults.RequestRefusedError),
        ("RunContainerError", faults.RequestRefusedError),
    ],
)
def test_a_pod_that_will_not_start_says_why(reason: str, kind: type[faults.PodError]) -> None:
    """An image that cannot be had, and one that cannot run."""
    fault = faults.start_fault(waiting(reason))
    assert type(fault) is kind
    assert reason in str(fault)


def test_a_pod_that_may_still_start_is_no_fault() -> None:
    """Waiting for a node, for an image on its way, for its container."""
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    for seen in (pod({}), waiting("ContainerCreating"), pod({"phase": "Pending", "conditions": [unplaced]})):
        assert faults.start_fault(seen) is None
    assert faults.unschedulable(pod({"conditions": [unplaced]})) == "0/1 nodes"
    assert faults.unschedulable(pod({"conditions": [{**unplaced, "status": "True"}]})) == ""


_DISK = "Pod ephemeral local storage usage exceeds the total limit of containers 26Mi. "
_DIRECTORY = 'Usage of EmptyDir volume "logs" exceeds the limit "1Mi". '
_PRESSURE = "The node was low on resource: ephemeral-storage. Threshold quantity: 1, available: 0. "


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (ended("OOMKilled", 137), faults.OutOfMemoryError),
        (ended("Error", 137, reason="Evicted", message=_DISK), faults.OutOfDiskError),
        (
            ended("Error", 137, reason="Evicted", message=_DIRECTORY),
            faults.OutOfDiskError,
        ),
        (pod({"phase": "Failed", "reason": "Evicted", "message": _DISK}), faults.OutOfDiskError),
        (
            pod({"phase": "Failed", "reason": "Evicted", "message": _PRESSURE}),
            faults.EvictedError,
        ),
        (pod({"phase": "Failed", "reason": "DeadlineExceeded"}), faults.DeadlinePassedError),
        (pod({"phase": "Failed", "reason": "NodeLost"}), faults.NodeLostError),
        (pod({"phase": "Failed", "reason": "Terminated"}), faults.NodeLostError),
        (ended("Unknown", 255), faults.NodeLostError),
        (pod({"phase": "Unknown"}), faults.PodEndedError),
        (disrupted("DeletionByTaintManager"), faults.NodeLostError),
        (disrupted("EvictionByEvictionAPI"), faults.EvictedError),
        (ended("Error", 1), faults.PodEndedError),
    ],
)
def test_a_pod_that_ended_says_how(seen: dict[str, Any], kind: type[faults.PodError]) -> None:
    """The box's own limits are told from what its node or its deadline did."""
    assert type(faults.end_fault(seen)) is kind


def test_a_running_pod_has_not_ended() -> None:
    """Nor has one that is about to run."""
    assert faults.end_fault(pod({"phase": "Running"})) is None
    assert faults.end_fault(pod({})) is None


@pytest.mark.parametrize(
    ("status", "message", "kind", "is_permanent"),
    [
        (403, 'pods "p" is forbidden: exceeded quota: q, requested: pods=1', faults.QuotaExceededError, False),
        (403, 'pods "p" is forbidden: violates PodSecurity "restricted:latest"', faults.PodSecurityError, True),
        (403, 'pods is forbidden: User "u" cannot create resource', faults.AccessRefusedError, True),
        (401, "Unauthorized", faults.AccessRefusedError, True),
        (409, "already exists", faults.NameTakenError, True),
        (410, "too old resource version", faults.VersionExpiredError, False),
        (422, "spec.containers[0].image: Required value", faults.RequestRefusedError, True),
        (429, "too many requests", faults.TooManyRequestsError, False),
        (503, "no answer", faults.ApiUnreachableError, False),
        (418, "teapot", faults.PodError, False),
    ],
)
def test_an_answer_that_is_no_success_has_a_name(
    status: int, message: str, kind: type[faults.PodError], is_permanent: object
) -> None:
    """Quota, PodSecurity and rights are three things behind one status; each survives pickling."""
    fault = faults.answer_fault(status, message, "POST pods")
    assert (type(fault), fault.is_permanent) == (kind, is_permanent)
    assert isinstance(fault, SandboxError)
    assert str(pickle.loads(pickle.dumps(fault))) == str(fault)  # noqa: S301 - our own bytes
    assert message in str(fault)
