"""Bit-equal arithmetic: one torch thread a worker, deterministic kernels, results added in a fixed order.

Work is spread over Python threads, not over torch's: sums then do not depend on how many there are, and threads of
one small operation do not wait for each other when the cores are shared.
"""

from concurrent.futures import ThreadPoolExecutor

import torch


def settle() -> None:
    """Make torch deterministic in this process, and single-threaded in the calling thread."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)


def workers(n: int, name: str) -> ThreadPoolExecutor:
    """Return ``n`` settled worker threads."""
    return ThreadPoolExecutor(max_workers=n, thread_name_prefix=name, initializer=settle)
