"""What can go wrong with a pod, each by its name: one table from what Kubernetes says to what a record says.

A trial's record quotes the class, so ``EvictedError`` stands where an operator looks. ``is_permanent`` says whether the
same box would fail again: admission refuses such things where it can see them, and a retry is waste.

Source: Kubernetes API v1, PodStatus, ContainerStateWaiting, Status; kubelet ``pkg/kubelet/images`` and ``eviction``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from adapters.sandboxes.kubernetes_objects import Json, items, name_of, phase_of, section, states
from domain.errors import SandboxError


class PodError(SandboxError):
    """Something about a pod or the cluster, told apart by class."""


class ImageUnavailableError(PodError):
    """The node cannot get the image."""


class ImageNameError(PodError):
    """No node could ever get an image of this name."""

    is_permanent = True


class QuotaExceededError(PodError):
    """The namespace's quota has no room now."""


class PodSecurityError(PodError):
    """The namespace's PodSecurity level does not admit such a pod."""

    is_permanent = True


class AccessRefusedError(PodError):
    """The credentials may not do this."""

    is_permanent = True


class RequestRefusedError(PodError):
    """The API or an admission webhook finds the request wrong."""

    is_permanent = True


class UnschedulableError(PodError):
    """No node had room or matched for as long as we wait."""


class NotStartedError(PodError):
    """The pod had a node and did not run in time."""


class EvictedError(PodError):
    """The node ran out of something and ended the pod."""


class OutOfMemoryError(PodError):
    """The pod was ended at its memory limit."""


class OutOfDiskError(PodError):
    """The pod was ended at its limit of ephemeral storage."""


class NodeLostError(PodError):
    """The node went away, was shut down or restarted."""


class DeadlinePassedError(PodError):
    """The pod's own deadline ended it."""


class PodEndedError(PodError):
    """The pod's first process has ended."""


class PodGoneError(PodError):
    """Somebody deleted the pod."""


class NameTakenError(PodError):
    """The name belongs to something else."""

    is_permanent = True


class TooManyRequestsError(PodError):
    """The API server kept refusing for as long as we wait."""


class VersionExpiredError(PodError):
    """The server has forgotten the version that a watch wanted to go on from."""


class ApiUnreachableError(PodError):
    """The API server does not answer."""


class ProxyUnreachableError(PodError):
    """A pod cannot reach the model proxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One line of the table: which words mean which fault, and what helps."""

    says: tuple[str, ...]
    kind: type[PodError]
    hint: str


_WAITING = (
    _Row(says=("InvalidImageName",), kind=ImageNameError, hint="correct environment.docker_image"),
    _Row(
        says=("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable"),
        kind=ImageUnavailableError,
        hint="push it where the nodes pull from, and name the pull secret in SYNTH_KUBERNETES_PULL_SECRETS",
    ),
    _Row(
        says=("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
        kind=RequestRefusedError,
        hint="the image must hold /bin/sh, and run as the user that is asked for",
    ),
)
_ENDED = (
    _Row(says=("Evicted/ephemeral",), kind=OutOfDiskError, hint="the task's storage_mb is the limit"),
    _Row(says=("Evicted/emptydir",), kind=OutOfDiskError, hint="the task's storage_mb is the limit"),
    _Row(says=("Evicted", "Preempted", "Preempting"), kind=EvictedError, hint="give nodes room, or requests their due"),
    _Row(says=("DeadlineExceeded",), kind=DeadlinePassedError, hint="the trial's deadline is the pod's"),
    _Row(
        says=("NodeLost", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity", "UnexpectedAdmissionError"),
        kind=NodeLostError,
        hint="the trial runs again elsewhere",
    ),
    _Row(says=("OOMKilled",), kind=OutOfMemoryError, hint="the task's memory_mb is the limit"),
    _Row(says=("ContainerStatusUnknown", "Unknown"), kind=NodeLostError, hint="the trial runs again elsewhere"),
)
_ANSWERS: Mapping[int, tuple[_Row, ...]] = {
    403: (
        _Row(says=("exceeded quota",), kind=QuotaExceededError, hint="raise the quota, or run fewer trials at once"),
        _Row(
            says=("violates PodSecurity",),
            kind=PodSecurityError,
            hint="an image whose user is root needs level 'baseline'; in a 'restricted' namespace set "
            "SYNTH_KUBERNETES_USER to a user id that is not 0",
        ),
        _Row(says=("",), kind=AccessRefusedError, hint="sandboxes/PODS.md lists the rights that are needed"),
    ),
    401: (_Row(says=("",), kind=AccessRefusedError, hint="renew the credentials of the kubeconfig"),),
    400: (_Row(says=("",), kind=RequestRefusedError, hint="the API's words say what"),),
    409: (_Row(says=("",), kind=NameTakenError, hint="a box id is used once"),),
    410: (_Row(says=("",), kind=VersionExpiredError, hint="list again"),),
    422: (_Row(says=("",), kind=RequestRefusedError, hint="the API's words say which field"),),
    429: (_Row(says=("",), kind=TooManyRequestsError, hint="run fewer trials at once"),),
}
_UNREACHABLE = 500


def answer_fault(status: int, message: str, doing: str) -> PodError:
    """Return the fault of an answer that is no success."""
    for row in _ANSWERS.get(status, ()):
        if any(words in message for words in row.says):
            return row.kind(f"{doing}: {message or status}", hint=row.hint)
    kind = ApiUnreachableError if status >= _UNREACHABLE else PodError
    return kind(f"{doing}: the API answers {status}: {message}")


def start_fault(pod: Json) -> PodError | None:
    """Return why a pod that does not run yet never will, None while it may."""
    for waiting in states(pod, "waiting"):
        for row in _WAITING:
            if waiting.get("reason") in row.says:
                words = f"{waiting['reason']}: {waiting.get('message', '')}".strip()
                return row.kind(f"pod {name_of(pod)}: {words}", hint=row.hint)
    return end_fault(pod)


def end_fault(pod: Json) -> PodError | None:
    """Return how a pod ended, None while it has not."""
    if phase_of(pod) not in {"Failed", "Succeeded", "Unknown"}:
        return _lost_node(pod)
    for reason, message in _reasons(pod):
        for row in _ENDED:
            if reason in row.says:
                return row.kind(f"pod {name_of(pod)}: {reason.partition('/')[0]}: {message}", hint=row.hint)
    codes = [state.get("exitCode") for state in states(pod, "terminated")]
    return PodEndedError(f"pod {name_of(pod)}: its first process ended with {codes[0] if codes else 'nothing said'}")


def _lost_node(pod: Json) -> PodError | None:
    """A pod of a node that does not answer stays Running; a condition tells that it is to be given up."""
    for condition in items(pod, "status", "conditions"):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            reason = condition.get("reason", "")
            kind = NodeLostError if reason in {"DeletionByTaintManager", "DeletionByPodGC"} else EvictedError
            return kind(f"pod {name_of(pod)}: {reason}: {condition.get('message', '')}")
    return None


def unschedulable(pod: Json) -> str:
    """Return the scheduler's words on a pod that has no node, empty when it has one."""
    for condition in items(pod, "status", "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "no node")
    return ""


def _reasons(pod: Json) -> list[tuple[str, str]]:
    """Return what says why a pod ended, the pod's own word first, since containers then only say that they ended."""
    status = section(pod, "status")
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    found: list[tuple[str, str]] = []
    if reason == "Evicted" and "The node was low" not in message:
        if "ephemeral" in message:
            found.append(("Evicted/ephemeral", message))
        if "EmptyDir" in message:
            found.append(("Evicted/emptydir", message))
    found.append((reason, message))
    ends = states(pod, "terminated")
    return found + [(str(end.get("reason") or ""), f"exit code {end.get('exitCode')}") for end in ends]
