"""Every kind of fault once, while a worker dies and a unit is delivered twice: no trial is taken for another."""

from pathlib import Path

import pytest

from tests.services.fault_drill import FaultPlan, run_drill, summary
from tests.services.fault_table import FAULTS


@pytest.mark.timeout(240)
async def test_no_fault_is_misclassified(tmp_path: Path) -> None:
    """Outcome, grading, reward and retries of each kind are the table's; nothing is lost, doubled or left over."""
    plan = FaultPlan(trials=len(FAULTS), shard=24, kills=1, doubles=1, stops=0, pauses_s=(1.0, 3.0), timeout_s=200.0)
    found = await run_drill(tmp_path, plan)
    assert not found.misclassified, summary(found)["wrong"]
    assert (len(found.rows), found.lost, found.doubled, found.boxes_left) == (len(FAULTS), [], [], 0)
    assert found.disturbed == {"kill": 1, "double": 1}
