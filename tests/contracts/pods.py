"""A cluster for tests of Kubernetes boxes: the one that SYNTH_TEST_KUBECONFIG or KUBECONFIG names, else the double."""

import atexit
import functools
import os
from dataclasses import replace

import pytest

from adapters.sandboxes.kubernetes_box import KubernetesBox
from adapters.sandboxes.kubernetes_cluster import Cluster
from adapters.sandboxes.kubernetes_exec import Output, new_mark, run
from adapters.sandboxes.kubernetes_link import link_to
from domain.errors import SandboxError
from domain.ports import Box
from resources.kubernetes_settings import read_cluster
from tests.docker_engine import IMAGE, docker_url
from tests.kubernetes_double.double import KubernetesDouble

_SHARE = 0.05
"""Requests are small, so that twenty boxes fit on two cores."""
_LIST = """
for p in /proc/[0-9]*; do
  line=; { read -r line <"$p/cmdline"; } 2>/dev/null
  case $line in *WORD*) printf '%s ' "${p#/proc/}";; esac
done
"""


def _named() -> str:
    variables = dict(os.environ)  # noqa: TID251 - a test's own settings
    return variables.get("SYNTH_TEST_KUBECONFIG") or variables.get("KUBECONFIG") or ""


def runs_own_double() -> bool:
    """Say whether the cluster is the tests' double, whose images are those of the tests' Docker engine."""
    return not _named()


@functools.cache
def double() -> KubernetesDouble:
    """Return the double of this session, which ends with it; without an engine skipped, and a failure in CI."""
    started = KubernetesDouble(docker_url()).start()
    atexit.register(started.stop)
    return started


def named_cluster() -> Cluster:
    """Return the cluster, as SYNTH_KUBERNETES_* describe it; without an engine for the double the test is skipped."""
    variables = dict(os.environ)  # noqa: TID251 - a test's own settings
    named = _named() or double().kubeconfig
    return replace(read_cluster(variables), kubeconfig=named, request_share=_SHARE)


def image_with_python() -> str:
    """Return an image of the cluster that holds Python with its library; without one the test is skipped."""
    named = os.environ.get("SYNTH_TEST_KUBERNETES_PYTHON")  # noqa: TID251 - a test's own setting
    if not named and not _named():
        return IMAGE
    if not named:
        pytest.skip("SYNTH_TEST_KUBERNETES_PYTHON names no image")
    return named


async def processes_in_pod(box: Box, word: str) -> list[int]:
    """Return the processes of a box's pod whose command line holds ``word``, none when the pod is over."""
    assert isinstance(box, KubernetesBox)
    link, output = link_to(named_cluster()), Output(10_000)

    async def look() -> None:
        api, _ = await link.open()
        await run(api, box.name, _LIST.replace("WORD", word), new_mark(), output.keep)

    try:
        await link.loop.call(look())
    except SandboxError:
        return []
    return [int(number) for number in output.stdout.split()]
