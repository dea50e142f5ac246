"""Keep a cluster running: ``python -m tests.kubernetes_double DIRECTORY``."""

import signal
import sys
from pathlib import Path

from tests.docker_engine import docker_url
from tests.kubernetes_double.cluster import Double


def main() -> int:
    """Run until a signal comes."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    with Double(directory, docker_url()) as double:
        sys.stdout.write(f"export KUBECONFIG={double.kubeconfig}\n")
        sys.stdout.flush()
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(main())
