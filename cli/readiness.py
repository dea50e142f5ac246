"""Whether what ``synth up`` starts can work already, asked as its users would."""

import json
import socket
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from domain.errors import ConfigurationError

if TYPE_CHECKING:
    from resources.settings import Settings

FIRST_EPHEMERAL_PORT = 32768
_NEEDED_DAEMONS = frozenset({"SENSOR", "QUEUED_RUN_COORDINATOR"})
_TRIES = 200
_QUERY = """
{ workspaceOrError { ... on Workspace { locationEntries { loadStatus locationOrLoadError {
      __typename ... on PythonError { message } } } } }
  instance { daemonHealth { allDaemonStatuses { daemonType healthy } } } }
"""


@dataclass(slots=True, kw_only=True)
class Probe:
    """Asks the processes."""

    settings: "Settings"

    def missing(self) -> str:
        """Return what is not ready yet, in words; empty when everything is."""
        if not (self.settings.run / "proxy.port").exists():
            return "the model process does not answer"
        try:
            return self._dagster()
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"the Dagster webserver does not answer: {error}"

    def _dagster(self) -> str:
        url = f"http://{self.settings.ui_host}:{self.settings.ui_port}/graphql"
        body = json.dumps({"query": _QUERY}).encode()
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10.0) as response:
            data: Any = json.load(response)["data"]
        for entry in data["workspaceOrError"]["locationEntries"]:
            found = entry["locationOrLoadError"] or {"__typename": "nothing"}
            if found["__typename"] == "PythonError":
                return f"the code location does not load: {found['message'].strip()[-500:]}"
            if entry["loadStatus"] != "LOADED":
                return "the code location is loading"
        daemons = data["instance"]["daemonHealth"]["allDaemonStatuses"]
        healthy = {daemon["daemonType"] for daemon in daemons if daemon["healthy"]}
        waiting = sorted(_NEEDED_DAEMONS - healthy)
        return f"the daemon has not started {', '.join(waiting)}" if waiting else ""


def moved_port(wanted: int, ui: str) -> str:
    """Return what is said of a UI that is not at the port that was wanted; empty where it is."""
    found = ui.rpartition(":")[2]
    if found == str(wanted):
        return ""
    return f"port {wanted} is taken by another program: the UI is at port {found} (SYNTH_UI_PORT chooses another)"


def free_port(host: str, first: int) -> int:
    """Return the first port from ``first`` on that nobody holds, below the ephemeral range.

    Raises:
        ConfigurationError: none is free.
    """
    for port in range(first, min(first + _TRIES, FIRST_EPHEMERAL_PORT)):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise ConfigurationError(f"no free port on {host} from {first} on", hint="set SYNTH_UI_PORT or SYNTH_PROXY_PORT")
