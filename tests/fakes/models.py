"""A tiny real policy for tests: a byte-level BPE and a Qwen3 of a few thousand parameters, made once per process."""

from dataclasses import dataclass, replace
from functools import cache

from adapters.families.qwen3 import Qwen3Family
from adapters.trainers.base_policy import DemonstrationPolicyMaker
from domain.errors import NotFoundError
from domain.lifecycle.mini_dialogue import BASH, opening
from domain.records.chat import ChatMessage, Demonstration, ToolCall
from domain.records.model import BasePolicy, PolicyRecipe, PolicyVersion
from tests.fakes.store import MemoryStore

TINY_RECIPE = PolicyRecipe(
    name="tiny",
    demonstrations="tests/fakes/models.py",
    vocabulary=384,
    hidden=16,
    layers=2,
    heads=2,
    context_tokens=256,
    steps=12,
    batch=4,
    learning_rate=1e-2,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyPolicy:
    """The policy, the store with its files and what reads them."""

    store: MemoryStore
    base: BasePolicy
    family: Qwen3Family

    @property
    def version(self) -> PolicyVersion:
        """The base as a servable version."""
        return PolicyVersion(name=f"base-{self.base.digest[:12]}", base=self.base.digest)

    def files_of_base(self, digest: str) -> BasePolicy:
        """Look a base up by digest."""
        if digest != self.base.digest:
            message = f"no base policy {digest}"
            raise NotFoundError(message)
        return self.base


def call(command: str) -> ChatMessage:
    """Return an assistant turn that runs a command."""
    return ChatMessage(
        role="assistant",
        content="",
        tool_calls=(ToolCall(name="bash", arguments={"command": command}, raw=""),),
    )


def demonstrations(n: int = 8) -> tuple[Demonstration, ...]:
    """Return small conversations with one tool result each."""
    return tuple(
        Demonstration(
            task_name=f"demo/count-{index}",
            messages=(
                *opening(f"Count the lines of file{index}.txt into out.txt."),
                call(f"wc -l < file{index}.txt > out.txt"),
                ChatMessage(role="tool", content="ok"),
                ChatMessage(role="assistant", content="done"),
            ),
            n_opening=2,
        )
        for index in range(n)
    )


@cache
def tiny_policy() -> TinyPolicy:
    """Make the policy; the same one for every test of a process."""
    store = MemoryStore()
    maker = DemonstrationPolicyMaker(store, Qwen3Family.from_json, threads=1)
    base = maker.make(TINY_RECIPE, demonstrations(), (BASH,), lambda _what, _done, _total: None)
    return TinyPolicy(store=store, base=base, family=Qwen3Family.from_base(base, store))


@cache
def wide_policy() -> TinyPolicy:
    """Make the same policy with heads of 32 numbers, the fewest that vLLM serves; the tokenizer is the same."""
    store = MemoryStore()
    maker = DemonstrationPolicyMaker(store, Qwen3Family.from_json, threads=1)
    recipe = replace(TINY_RECIPE, name="wide", hidden=64)
    base = maker.make(recipe, demonstrations(), (BASH,), lambda _what, _done, _total: None)
    return TinyPolicy(store=store, base=base, family=Qwen3Family.from_base(base, store))
