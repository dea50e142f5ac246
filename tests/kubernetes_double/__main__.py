"""Keep a cluster running for hands: ``python -m tests.kubernetes_double``."""

import signal
import sys

from tests.docker_engine import docker_url
from tests.kubernetes_double.double import KubernetesDouble


def main() -> int:
    """Run until a signal comes."""
    with KubernetesDouble(docker_url()) as double:
        sys.stdout.write(f"export KUBECONFIG={double.kubeconfig}\n")
        sys.stdout.flush()
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(main())
