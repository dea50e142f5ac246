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
    problems = [_run(program, "-I", rule) for rule in _rules(bridge) if _run(program, "-C", rule)]
    told = "; ".join(problem for problem in problems if problem)
    return f"public; this machine is reachable: {told}" if told else "public, but not this machine (iptables)"


def lift(bridge: str) -> None:
    """Take the rules of a bridge away that is no more."""
    program = shutil.which("iptables", path=_PATH)
    for rule in _rules(bridge) if program is not None and bridge else ():
        while not _run(program or "", "-D", rule):
            pass


def _rules(bridge: str) -> list[list[str]]:
    places: tuple[tuple[str, list[str]], ...] = (("INPUT", []), ("DOCKER-USER", ["-d", _METADATA]))
    return [
        [chain, "-i", bridge, *match, "-m", "conntrack", "--ctstate", "NEW", "-j", "DROP"] for chain, match in places
    ]


def _run(program: str, action: str, rule: list[str]) -> str:
    """Return what is wrong, empty when nothing is."""
    done = subprocess.run(  # noqa: S603 - argv is built here, without a shell
        [program, "-w", _WAIT_S, action, *rule], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "refused"
