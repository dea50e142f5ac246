"""Entry of the Dagster daemon of ``synth up``: its sensor loop turns every second instead of every five.

The dispatcher runs in that loop, so that between two batches of a training a quarter of the time would be waiting.
"""

import sys

LOOP_S = 1
"""Seconds; sensors still keep their own minimum intervals."""


def main() -> None:
    """Run ``dagster-daemon`` with this process's arguments."""
    from dagster._daemon import sensor
    from dagster._daemon.cli import main as dagster_daemon

    # Not configurable in Dagster 1.13; tests/services/test_up.py notices when the constant goes.
    sensor.MIN_INTERVAL_LOOP_TIME = LOOP_S
    dagster_daemon()


if __name__ == "__main__":
    sys.exit(main())
