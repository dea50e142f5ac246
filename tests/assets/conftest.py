"""The graph over real ledger, store and memory boxes; only the model process is a fake."""

from pathlib import Path

import pytest

from domain.records.names import parse_reference
from domain.service.publish import publish_task_set
from tests.assets.graph import Graph, make_graph
from tests.fakes.platform import make_platform, write_task


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """Return the graph with a published set of three no-op tasks."""
    home = tmp_path / "home"
    platform = make_platform(home)
    for name in ("a1", "a2", "b1"):
        write_task(tmp_path / "tasks", name)
    publish_task_set(platform, parse_reference("team/small@v1", field="test"), str(tmp_path / "tasks"))
    return make_graph(platform, home)
