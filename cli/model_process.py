"""Entry of the model process: sampler, trainer and proxy, started and restarted by ``synth up``."""

import asyncio
import logging
import sys

from cli.connection import settings
from domain.errors import SynthError

_log = logging.getLogger("synth.model")


def main() -> int:
    """Serve until SIGTERM; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from resources.wiring import run_model_process

    try:
        asyncio.run(run_model_process(settings(), lambda port: _log.info("ready, proxy on port %s", port)))
    except SynthError as error:
        _log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
