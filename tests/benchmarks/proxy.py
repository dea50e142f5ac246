"""What a proxy adds to a model call, ours and peers before the same engine in the same minutes. Prints JSON.

* ``calls``: sessions of ten calls whose first request is 8 KB, 128 ids with logprobs in every answer; CPU of the
  proxy's process for each call at 1 and 16 callers, what it adds to the median time of one caller, calls a second with
  the proxy on one core, CPU of a streamed call. Ours renders and tokenizes, and each exchange is on disk before its
  last byte.
* ``session``: one session of 200 calls, each with 1.4 KB more text: CPU, its growth, what is stored, how long reading
  it back takes (ours).
* ``prepare``: of a conversation of 105,000 tokens, the ids of the next prompt against rendering all of it.

Figures of peers: Source: facts/peers-and-statistics.md sections B1 and B2 have earlier ones.

Run: ``python -m tests.benchmarks.proxy [--calls 320] [--peers rllm,litellm,agentlightning]``.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import httpx
import psutil

from adapters.evidence import JournalEvidence
from adapters.evidence_arrays import decode_calls
from adapters.servers.conversation import Conversation
from adapters.servers.wire import read_request
from adapters.stores.directory import DirectoryStore
from domain.records.trial import Interaction, Purpose, StopReason
from tests.benchmarks import proxy_peers
from tests.benchmarks.processes import ROOT, machine
from tests.benchmarks.proxy_peers import Proxy
from tests.benchmarks.proxy_process import tokenizer_of_this_repository

_PEERS: dict[str, Callable[[Path, str], AbstractContextManager[Proxy]]] = {
    "rllm": proxy_peers.rllm,
    "litellm": proxy_peers.litellm,
    "agentlightning": proxy_peers.agentlightning,
}
_SESSION = 10
_TURNS = 200
_SOURCE = "".join(path.read_text("utf-8") for path in sorted((ROOT / "domain").rglob("*.py")))
_SYSTEM = _SOURCE[:6500]
_PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
_DESCRIPTION = "Run a command. " * 40


class Caller:
    """A harness that keeps its own history and speaks what its proxy speaks."""

    def __init__(self, client: aiohttp.ClientSession, proxy: Proxy, trial: int, *, stream: bool = False) -> None:
        """Take a trial's place."""
        self._client, self._proxy, self._trial, self._stream = client, proxy, trial, stream
        self.messages: list[dict[str, Any]] = []

    async def ask(self, text: str) -> float:
        """Add a user message and the answer; returns seconds."""
        self.messages.append({"role": "user", "content": text})
        started_s = time.perf_counter()
        url, headers = self._proxy.url_of(self._trial), self._proxy.headers_of(self._trial)
        async with self._client.post(url, data=json.dumps(self._body()), headers=headers) as response:
            data = await response.read()
            if response.status != 200:
                raise RuntimeError(f"{url}: {response.status}: {data[:300]!r}")
        seconds = time.perf_counter() - started_s
        self.messages.append({"role": "assistant", "content": self._said(data)})
        return seconds

    def _body(self) -> dict[str, Any]:
        common = {"model": "policy", "max_tokens": 300, "stream": self._stream}
        if self._proxy.speaks_messages:
            tool = {"name": "bash", "description": _DESCRIPTION, "input_schema": _PARAMETERS}
            return {**common, "system": _SYSTEM, "tools": [tool], "messages": self.messages}
        function = {"name": "bash", "description": _DESCRIPTION, "parameters": _PARAMETERS}
        tools = [{"type": "function", "function": function}]
        return {**common, "tools": tools, "messages": [{"role": "system", "content": _SYSTEM}, *self.messages]}

    def _said(self, data: bytes) -> Any:
        if self._stream:
            events = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")]
            if self._proxy.speaks_messages:
                deltas = (event["delta"] for event in events if event.get("type") == "content_block_delta")
                return "".join(delta.get("text", "") for delta in deltas)
            return "".join(
                event["choices"][0]["delta"].get("content") or "" for event in events if event.get("choices")
            )
        answer = json.loads(data)
        return answer["content"] if self._proxy.speaks_messages else answer["choices"][0]["message"]["content"]


def _cpu_s(process: psutil.Process) -> float:
    found = [process, *process.children(recursive=True)]
    return sum(times.user + times.system for times in (each.cpu_times() for each in found))


async def _calls(proxy: Proxy, n_calls: int, n_callers: int, *, stream: bool = False) -> dict[str, float]:
    process = psutil.Process(proxy.pid)
    seconds: list[float] = []
    async with aiohttp.ClientSession() as client:

        async def work(trial: int, n: int) -> None:
            caller = Caller(client, proxy, trial, stream=stream)
            for number in range(n):
                if number % _SESSION == 0:
                    caller.messages.clear()
                seconds.append(await caller.ask(f"{trial} {number} {_SOURCE[number * 37 : number * 37 + 600]}"))

        await asyncio.gather(*(work(trial, 2) for trial in range(n_callers)))
        seconds.clear()
        before_s, started_s = _cpu_s(process), time.perf_counter()
        await asyncio.gather(*(work(trial, n_calls // n_callers) for trial in range(n_callers)))
    wall_s, used_s = time.perf_counter() - started_s, _cpu_s(process) - before_s
    return {
        "cpu_ms": round(used_s / len(seconds) * 1000, 2),
        "p50_ms": round(median(seconds) * 1000, 2),
        "per_s": round(len(seconds) / wall_s, 1),
    }


async def _session(proxy: Proxy) -> dict[str, float]:
    process = psutil.Process(proxy.pid)
    stored = proxy.stored_bytes()
    costs: list[float] = []
    async with aiohttp.ClientSession() as client:
        caller = Caller(client, proxy, 20)
        for turn in range(_TURNS):
            before_s = _cpu_s(process)
            await caller.ask(_SOURCE[turn * 560 : turn * 560 + 560])
            costs.append(_cpu_s(process) - before_s)
    quarter = _TURNS // 4
    return {
        "cpu_s": round(sum(costs), 2),
        "last_over_first_quarter": round(sum(costs[-quarter:]) / max(sum(costs[:quarter]), 1e-9), 2),
        "stored_mb": round((proxy.stored_bytes() - stored) / 1e6, 2),
    }


def _on_one_core(proxy: Proxy) -> None:
    cores = sorted(os.sched_getaffinity(0))
    for each in (proxy.pid, *(child.pid for child in psutil.Process(proxy.pid).children(recursive=True))):
        for thread in psutil.Process(each).threads():
            os.sched_setaffinity(thread.id, {cores[-1]})


async def _measured(proxy: Proxy, n_calls: int, direct_ms: float) -> dict[str, Any]:
    one = await _calls(proxy, n_calls // 2, 1)
    streamed = await _calls(proxy, n_calls // 4, 1, stream=True) if proxy.streams else None
    session = await _session(proxy)
    _on_one_core(proxy)
    many = await _calls(proxy, n_calls, 16)
    return {
        "cpu_ms_c1": one["cpu_ms"],
        "cpu_ms_c16": many["cpu_ms"],
        "added_p50_ms_c1": round(one["p50_ms"] - direct_ms, 2),
        "calls_per_s_c16_one_core": many["per_s"],
        "streamed_cpu_ms": None if streamed is None else streamed["cpu_ms"],
        "session": session,
    }


def _prepare(home: Path) -> dict[str, Any]:
    """Return CPU milliseconds of a long conversation's next prompt, by what was sampled and from nothing."""
    family = tokenizer_of_this_repository(home)
    chat = Conversation()
    messages: list[dict[str, Any]] = []
    for number in range(62):
        messages.append({"role": "user", "content": _SOURCE[number * 7000 : number * 7000 + 7000]})
        request = read_request(json.dumps({"model": "m", "messages": messages}).encode(), chat.newest.messages)
        prompt = chat.plan(request, family)
        said = [{"type": "text", "text": f"turn {number}"}]
        chat.add(_interaction(number, prompt.ids, family.stop_ids[:1], said), family.parse(()), prompt.context)
        messages.append({"role": "assistant", "content": said})
    messages.append({"role": "user", "content": "and now?"})
    body = json.dumps({"model": "m", "messages": messages}).encode()

    def whole() -> int:
        return len(Conversation().plan(read_request(body), family).ids)

    def incremental() -> int:
        return len(chat.plan(read_request(body, chat.newest.messages), family).ids)

    first, n_tokens = _cpu_ms(whole)
    second, _ = _cpu_ms(incremental)
    return {"n_tokens": n_tokens, "whole_ms": first, "incremental_ms": second, "ratio": round(second / first, 3)}


def _interaction(
    number: int, prompt_ids: tuple[int, ...], sampled_ids: tuple[int, ...], said: list[dict[str, Any]]
) -> Interaction:
    return Interaction(
        interaction_id=f"i{number}",
        trial_id="t",
        sequence=number,
        agent="main",
        segment=0,
        purpose=Purpose.AGENT,
        sampler_version="v",
        prompt_ids=prompt_ids,
        sampled_ids=sampled_ids,
        logprobs=(-0.5,) * len(sampled_ids),
        stop_reason=StopReason.STOP,
        temperature=1.0,
        seed=0,
        response={"content": said},
    )


def _cpu_ms(work: Callable[[], int]) -> tuple[float, int]:
    took: list[float] = []
    found = 0
    for _ in range(5):
        before_s = time.process_time()
        found = work()
        took.append(time.process_time() - before_s)
    return round(median(took) * 1000, 2), found


def _read_back(home: Path) -> dict[str, float]:
    """Return seconds of publishing and of reading the session's evidence, as a run does after a trial."""

    async def read() -> dict[str, float]:
        evidence = JournalEvidence(home / "model" / "journal", DirectoryStore(home / "store"))
        started_s = time.perf_counter()
        published = await evidence.publish("t20")
        half_s = time.perf_counter()
        n_calls = len(decode_calls(DirectoryStore(home / "store").get(published.object), published))
        ended_s = time.perf_counter()
        await evidence.close()
        return {
            "n_calls": n_calls,
            "publish_s": round(half_s - started_s, 3),
            "read_s": round(ended_s - half_s, 3),
            "published_mb": round(published.object.size_bytes / 1e6, 2),
        }

    return asyncio.run(read())


def _measure(n_calls: int, peers: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch, proxy_peers.engine() as engine_url:
        straight = Proxy(pid=os.getpid(), url_of=lambda _: f"{engine_url}/v1/chat/completions", headers_of=lambda _: {})
        direct = asyncio.run(_calls(straight, n_calls // 2, 1))
        for name, start in {"synth": proxy_peers.ours, **{peer: _PEERS[peer] for peer in peers}}.items():
            home = Path(scratch) / name
            home.mkdir()
            try:
                with start(home, engine_url) as proxy:
                    found[name] = asyncio.run(_measured(proxy, n_calls, direct["p50_ms"]))
            except (OSError, RuntimeError, subprocess.CalledProcessError, httpx.HTTPError) as error:
                found[name] = {"left_out": f"{type(error).__name__}: {error}"[:300]}
        found["synth"]["read_back"] = _read_back(Path(scratch) / "synth")
        return {
            "engine_alone": {"p50_ms_c1": direct["p50_ms"]},
            "calls": found,
            "prepare": _prepare(Path(scratch) / "synth"),
            "machine": machine(),
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What a proxy adds to a model call; prints JSON.")
    parser.add_argument("--calls", type=int, default=320)
    parser.add_argument("--peers", default=",".join(_PEERS))
    options = parser.parse_args()
    chosen = [peer for peer in options.peers.split(",") if peer]
    sys.stdout.write(json.dumps(_measure(options.calls, chosen), indent=2) + "\n")


if __name__ == "__main__":
    main()
