"""What a cluster does, found out by trying it from pods, once for a process.

Whether network policies are enforced depends on the cluster's network plugin, and nothing in the API says so: without
one that enforces them they are stored and ignored. So two pods dial the API server, one whose policy forbids it and one
whose policy allows it.
"""

import asyncio
from dataclasses import replace

from adapters.sandboxes.kubernetes_api import Api
from adapters.sandboxes.kubernetes_exec import Ended, Output, new_mark, run
from adapters.sandboxes.kubernetes_faults import ProxyUnreachableError
from adapters.sandboxes.kubernetes_labels import object_name
from adapters.sandboxes.kubernetes_link import Link
from adapters.sandboxes.kubernetes_manifest import proxy_address
from adapters.sandboxes.kubernetes_pods import make, remove
from adapters.sandboxes.kubernetes_shell import Words
from domain.errors import SynthError
from domain.ports import BoxSpec, Limits
from domain.records.task import NetworkMode, TaskEnvironment

_DIAL_S = 5
_REMOVE_S = 20.0
_NO_TOOL = 8
_DIAL = """
dial() {
  if command -v bash; then timeout "$3" bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$1" "$2"
  elif command -v python3; then
    python3 -c 'import socket,sys;socket.create_connection((sys.argv[1],int(sys.argv[2])),int(sys.argv[3]))' "$@"
  elif command -v perl; then
    perl -MIO::Socket::INET -e '($h,$p,$t)=@ARGV;
exit !IO::Socket::INET->new(PeerAddr=>$h,PeerPort=>$p,Timeout=>$t)' "$@"
  elif command -v nc; then nc -z -w "$3" "$1" "$2"
  else return 8; fi
} >/dev/null 2>&1
"""


async def dial(api: Api, pod: str, host: str = "", port: int = 0) -> Ended:
    """Try a TCP connection from a pod, to the API server when no host is named.

    Exit code 0: made, 8: the image has nothing to try it with.
    """
    words = Words()
    targets = '"$KUBERNETES_SERVICE_HOST" "$KUBERNETES_SERVICE_PORT"'
    if host:
        targets = words.all((host, str(port)))
    script = f"{_DIAL}{words.made}dial {targets} {_DIAL_S}; exit $?"
    return await run(api, pod, script, new_mark(), Output(1000).keep)


async def check_proxy(link: Link, pod: str) -> None:
    """Try the model proxy's address from a pod. Raises ProxyUnreachableError."""
    api, _ = await link.open()
    host, port = proxy_address(link.cluster)
    ended = await dial(api, pod, host, port)
    if ended.exit_code not in {0, _NO_TOOL}:
        raise ProxyUnreachableError(
            f"SYNTH_KUBERNETES_PROXY_URL: {link.cluster.proxy_url} cannot be reached from pods in {api.namespace}",
            hint="the proxy must listen on an address that pods route to, and network policies must let them",
        )


async def enforcement(link: Link, like: BoxSpec) -> str:
    """Say whether network policies hold here: ``enforced``, ``not enforced``, or why that is not known."""
    if "policies" not in link.probes:
        link.probes["policies"] = asyncio.get_running_loop().create_task(_enforcement(link, like))
    return str(await asyncio.shield(link.probes["policies"]))


async def _enforcement(link: Link, like: BoxSpec) -> str:
    try:
        opened, closed = await asyncio.gather(
            _reaches(link, like, NetworkMode.PUBLIC), _reaches(link, like, NetworkMode.NO_NETWORK)
        )
    except (SynthError, TimeoutError) as error:
        return f"not probed: {error}"
    if closed == 0:
        return "not enforced"
    return "enforced" if opened == 0 else "not probed: pods do not reach the API server"


async def _reaches(link: Link, like: BoxSpec, mode: NetworkMode) -> int | None:
    """Return the exit code of dialling the API server from a pod of its own."""
    api, watch = await link.open()
    spec = replace(
        like,
        box_id=f"{like.box_id}-{mode.value}-probe",
        environment=TaskEnvironment(docker_image=like.environment.docker_image, network_mode=mode),
        limits=Limits(memory_mb=64, disk_mb=64),
        model_access=False,
    )
    name = object_name(spec.box_id)
    try:
        # The cluster's own addresses are private to tasks, and it is one of them that is dialled.
        await make(api, watch, replace(link.cluster, private_networks=()), spec)
        return (await dial(api, name)).exit_code
    finally:
        await asyncio.shield(remove(api, watch, name, _REMOVE_S))
