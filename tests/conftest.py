"""What tests of several folders share: real vLLM servers, started once when the first test asks for them."""

from collections.abc import Generator

import pytest

from adapters.samplers.vllm_launch import VllmOptions, write_base
from tests.fakes.models import wide_policy
from tests.services.vllm_server import Server, free_port, require_vllm, servers


@pytest.fixture(scope="session")
def vllm_servers(tmp_path_factory: pytest.TempPathFactory) -> Generator[list[Server]]:
    """Two servers of one base, in float32."""
    require_vllm()
    wide = wide_policy()
    directory = tmp_path_factory.mktemp("vllm")
    model = write_base(wide.base, wide.store, directory)
    options = [
        VllmOptions(
            port=free_port(),
            served_name=wide.version.name,
            context_tokens=wide.base.context_tokens,
            dtype="float32",
            extra=("--enforce-eager",),
        )
        for _ in range(2)
    ]
    with servers(model, options, directory) as started:
        yield started
