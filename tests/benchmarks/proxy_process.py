"""The model proxy in a process of its own, for its cost: real ledger, journal and native format, a given engine.

Run: ``python -m tests.benchmarks.proxy_process HOME TRIALS ENGINE_URL``; prints its address and a token for each trial
as JSON, and ends with its standard input.
"""

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
from pydantic_core import to_json

from adapters.clock import SystemClock
from adapters.families.qwen3 import Qwen3Family
from adapters.trainers.tokenizer_training import train_tokenizer
from domain.ports import SampleRequest, SampleResult
from domain.records.trial import StopReason
from resources.settings import Settings
from resources.wiring import connect
from tests.benchmarks.processes import ROOT
from tests.fakes.scripted_model import ScriptedSampler, TokenBook, model_process

_VOCABULARY = 8000
_HEADERS = {"content-type": "application/json"}


class EngineSampler(ScriptedSampler):
    """Asks an engine over HTTP, ids in and ids out; its last id ends the turn, whatever it said."""

    def __init__(self, url: str, stop_id: int, session: aiohttp.ClientSession) -> None:
        """Take the engine and what ends a turn."""
        super().__init__(context_tokens=200_000)
        self._url, self._stop_id, self._session = f"{url}/v1/completions", stop_id, session

    async def sample(self, request: SampleRequest) -> SampleResult:
        """Send the prompt's ids, take ids and logprobs."""
        body = {"model": "policy", "prompt": request.prompt_ids, "max_tokens": request.max_tokens, "logprobs": 0}
        data = to_json({**body, "return_token_ids": True})
        async with self._session.post(self._url, data=data, headers=_HEADERS) as response:
            (choice,) = (await response.json())["choices"]
        return SampleResult(
            sampled_ids=(*choice["token_ids"][:-1], self._stop_id),
            logprobs=tuple(choice["logprobs"]["token_logprobs"]),
            stop_reason=StopReason.STOP,
            version=request.version,
        )


def tokenizer_of_this_repository(home: Path) -> Qwen3Family:
    """Return a family over a vocabulary trained on the code here: some four characters a token, as real ones have."""
    known = home / "tokenizer.json"
    if not known.exists():
        texts = [path.read_text("utf-8") for path in sorted((ROOT / "domain").rglob("*.py"))]
        train_tokenizer([texts], _VOCABULARY).save(str(known))
    return Qwen3Family.from_json(known.read_bytes())


async def _main(home: Path, n_trials: int, engine: str) -> None:
    platform = connect(Settings(home=home, ledger_url=f"sqlite:///{home / 'ledger.db'}"))
    tokens = TokenBook(SystemClock(), platform.ledger)
    family = tokenizer_of_this_repository(home)
    async with (
        aiohttp.ClientSession() as session,
        model_process(
            home / "model",
            platform.store,
            sampler=EngineSampler(engine, family.stop_ids[0], session),
            family=family,
            tokens=tokens,
            ledger=platform.ledger,
        ) as process,
    ):
        secrets = {f"t{number}": tokens.issue(f"t{number}") for number in range(n_trials)}
        sys.stdout.write(json.dumps({"url": process.url, "tokens": secrets}) + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
