"""What boxes with a public network must not reach: this machine itself, and where clouds keep their credentials.

Source: iptables(8); Docker's chain DOCKER-USER is there for rules of the host's own, and is never emptied by Docker.
"""

import os
import shutil
import subprocess
from typing import Any

_WAIT_S = "5"
_METADATA = "169.254.0.0/16"
_PATH = f"{os.defpath}:/usr/sbin:/sbin"


def bridge_of(network: dict[str, Any]) -> str:
    """Return the host's interface of a bridge network, as the engine names it unless it is told a name."""
    options: dict[str, str] = network.get("Options") or {}
    return options.get("com.docker.network.bridge.name") or f"br-{str(network['Id'])[:12]}"


def shield(bridge: str) -> str:
    """Let nothing from a bridge reach this machine or link-local addresses; returns what holds now, for the record.

    Names are still found: an engine resolves for its containers from inside them.
    """
    program = shutil.which("iptables", path=_PATH)
    if program is None:
        return "public; this machine is reachable: iptables is missing"
    problems: list[str] = []
    for chain, match in (("INPUT", []), ("DOCKER-USER", ["-d", _METADATA])):
        rule = [chain, "-i", bridge, *match, "-m", "conntrack", "--ctstate", "NEW", "-j", "DROP"]
        if _run(program, "-C", rule):
            problems.append(_run(program, "-I", rule))
    told = "; ".join(problem for problem in problems if problem)
    return f"public; this machine is reachable: {told}" if told else "public, but not this machine (iptables)"


def _run(program: str, action: str, rule: list[str]) -> str:
    """Return what is wrong, empty when nothing is."""
    done = subprocess.run(  # noqa: S603 - argv is built here, without a shell
        [program, "-w", _WAIT_S, action, *rule], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "refused"
