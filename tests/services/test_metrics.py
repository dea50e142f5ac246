"""Figures and health of the model process, as a Prometheus server and an orchestrator ask for them."""

import socket
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.scripted_model import model_process
from tests.fakes.store import MemoryStore
from tests.services.harness import NO_TLS, Harness


async def test_figures_and_health_have_an_address_of_their_own(tmp_path: Path) -> None:
    """What is told is true and parses; the address that boxes reach has none of it; no secret is told."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    async with model_process(tmp_path, MemoryStore(), ["one", "two"], metrics_port=port) as process:
        harness = Harness(process)
        await harness.ask("hello")
        await harness.ask("again")
        async with httpx.AsyncClient(verify=NO_TLS) as client:
            told = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
            healthy = [
                (await client.get(f"http://127.0.0.1:{port}/{path}")).status_code for path in ("healthz", "readyz")
            ]
            hidden = [(await client.get(f"{process.url}/{path}")).status_code for path in ("metrics", "healthz")]
        calls = await harness.calls()
    values = {sample.name: sample.value for family in text_string_to_metric_families(told) for sample in family.samples}
    assert values["synth_model_answered_total"] == values["synth_model_call_seconds_count"] == 2
    assert values["synth_model_sampled_tokens_total"] == sum(call.n_sampled_ids for call in calls)
    assert values["synth_model_calls_in_flight"] == 0
    assert values["synth_model_records"] == 2
    assert values["process_resident_memory_bytes"] > 0
    assert (healthy, hidden) == ([200, 200], [404, 404])
    assert harness.headers["authorization"].split()[1] not in told
    assert "t1" not in told
