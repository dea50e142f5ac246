"""Entry of the code server of ``synth up``: run processes are forked from one that has imported the graph already.

Dagster starts each run in a fresh interpreter, which takes more than a second of CPU before the first line of ours.
A fork server is a process of its own without threads, so that forking it is safe; a run still has its own process.
"""

import multiprocessing
import sys
from typing import Any

PRELOADED = "definitions"


def main() -> None:
    """Run ``dagster api grpc`` with this process's arguments."""
    from dagster._cli import main as dagster

    fresh: Any = multiprocessing.get_context

    def context(method: str | None = None) -> Any:
        return fresh("forkserver" if method == "spawn" else method)

    # Dagster 1.13 asks for "spawn" by name and offers no setting. Without this, runs only start more slowly.
    multiprocessing.get_context = context
    fresh("forkserver").set_forkserver_preload([PRELOADED])
    dagster()


if __name__ == "__main__":
    sys.exit(main())
