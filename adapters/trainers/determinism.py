"""Bit-equal arithmetic: fixed threads, deterministic kernels, a private random state."""

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def deterministic(*, threads: int, seed: int | None = None) -> Generator[None]:
    """Run the block with a fixed number of torch threads and deterministic kernels; restore everything after.

    Args:
        threads: intra-op threads of the calling thread. Sums depend on it, so it is part of the result.
        seed: seeds torch inside the block only; None: the block draws nothing.
    """
    threads_before = torch.get_num_threads()
    deterministic_before = torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=True)
    try:
        with torch.random.fork_rng(devices=[]):
            if seed is not None:
                torch.manual_seed(seed)
            yield
    finally:
        torch.use_deterministic_algorithms(mode=deterministic_before)
        torch.set_num_threads(threads_before)
