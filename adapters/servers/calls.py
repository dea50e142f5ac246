"""Model calls: whose token, which prompt, one sample, recorded before it is delivered."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from adapters.servers.authority import Authority
from adapters.servers.call import Answer, Call, Job, Trial, call_seed, check_result, ready, recorded_request
from adapters.servers.conversation import Conversation
from adapters.servers.delivery import message_of
from adapters.servers.fitting import fitted
from adapters.servers.stops import cut
from adapters.servers.wire import WireMessage, WireRequest
from domain.errors import (
    AuthorizationError,
    ConfigurationError,
    ContextOverflowError,
    SamplerError,
    SynthError,
    boundary,
)
from domain.ledger_ports import Ledger
from domain.ports import Clock, Evidence, Family, Sampler, SampleRequest, SampleResult
from domain.records.chat import ParsedTurn
from domain.records.experiment import TokenScope
from domain.records.model import PolicyVersion
from domain.records.trial import Interaction
from domain.records.wording import counted

T = TypeVar("T")
Reader = Callable[[Sequence[WireMessage]], WireRequest]
"""Reads a body; given the messages of the conversation's newest request."""
CALLS_AT_ONCE = 16
"""Of one trial; more are told to come back."""
_TRIALS_IN_MEMORY = 2000
"""Conversations beyond this are read from the journal again when they go on."""


_LONGEST_TOKEN = 256
"""Characters; no vocabulary has a longer one. Longer texts overflow for certain, and need not be rendered to know."""


class BusyError(SamplerError):
    """Too many calls of one trial at once."""


_REFUSALS = (ConfigurationError, ContextOverflowError, AuthorizationError, BusyError)
"""What a harness did wrong itself; anything else is the platform's fault."""


class CallDesk:
    """Takes requests of harnesses to recorded answers. Lives in one event loop."""

    def __init__(
        self,
        *,
        sampler: Sampler,
        family_of: Callable[[str], Family],
        evidence: Evidence,
        ledger: Ledger,
        clock: Clock,
        observe: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Wire the desk.

        Args:
            sampler: generates.
            family_of: policy version name -> its native format; may block.
            evidence: the journal.
            ledger: token scopes and policy versions; asked through a thread.
            clock: time and ids.
            observe: told how many seconds each answered call took, from its prompt to its record.
        """
        self._observe = observe
        self._sampler = sampler
        self._family_of = family_of
        self._evidence = evidence
        self._ledger = ledger
        self._authority = Authority(ledger, clock)
        self._clock = clock
        self._families: dict[str, Family] = {}
        self._trials: dict[str, Trial] = {}
        self._faults: dict[str, dict[str, str]] = {}
        """Trial -> agent -> why its last call failed, where the platform was the reason."""
        self._loading = asyncio.Lock()
        # One thread: tokenizers of one process must not run in two at once.
        self._renderer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="render")
        self.counters: dict[str, int] = dict.fromkeys(
            ("n_calls", "n_answered", "n_failed", "n_redelivered", "n_prompt_tokens", "n_sampled_tokens"), 0
        )

    @property
    def n_in_flight(self) -> int:
        """Calls under way."""
        return sum(len(trial.tasks) for trial in self._trials.values())

    async def scope(self, secret: str) -> TokenScope:
        """Return what a token may do now.

        Raises:
            AuthorizationError: it is unknown, expired or revoked.
        """
        return await self._authority.scope(secret)

    async def read(self, scope: TokenScope, agent: str, reader: Reader) -> WireRequest:
        """Return a request, read outside the event loop beside what its conversation has said before.

        Raises:
            ConfigurationError: it is no request.
        """
        with self._noting_faults(scope, agent):
            trial = await self._trial(scope)
            known = trial.conversations.get(agent)
            before = () if known is None else known.newest.messages
            context_tokens = self._sampler.context_tokens
            return await self._in_renderer(lambda: fitted(reader(before), context_tokens))

    async def begin(self, scope: TokenScope, agent: str, request: WireRequest) -> Call:
        """Check a request, and start its generation or return the one that it repeats.

        Raises:
            ConfigurationError: the model is not the token's.
            ContextOverflowError: the prompt is too long.
            AuthorizationError: the trial has ended.
            BusyError: the trial has too many calls under way.
            SynthError: the policy version cannot be served.
        """
        self._check_model(scope, request)
        self._check_length(request.n_characters // _LONGEST_TOKEN)
        with self._noting_faults(scope, agent):
            return await self._begin(scope, agent, request)

    async def _begin(self, scope: TokenScope, agent: str, request: WireRequest) -> Call:
        trial = await self._trial(scope)
        conversation = trial.conversations.setdefault(agent, Conversation())
        family = await self._family(scope.policy)
        prompt = await self._in_renderer(lambda: conversation.plan(request, family))
        repeated = self._repeated(trial, conversation, agent, prompt.context)
        if repeated is not None:
            self.counters["n_redelivered"] += 1
            return repeated
        self._check_length(len(prompt.ids))
        if trial.closed:
            raise AuthorizationError("this trial has ended")
        if len(trial.tasks) >= CALLS_AT_ONCE:
            raise BusyError(f"{counted(len(trial.tasks), 'call')} of this trial are under way")
        self._check_budget(scope, trial, len(prompt.ids))
        conversation.n_calls += 1
        job = Job(
            scope=scope,
            agent=agent,
            request=request,
            prompt=prompt,
            family=family,
            trial=trial,
            conversation=conversation,
            n_call=conversation.n_calls - 1,
        )
        return self._start(job)

    async def count(self, scope: TokenScope, agent: str, request: WireRequest) -> int:
        """Return how many tokens the prompt of this request has.

        Raises:
            ConfigurationError: the model is not the token's.
            ContextOverflowError: the text is too long for any tokenizer to fit it in.
        """
        self._check_model(scope, request)
        self._check_length(request.n_characters // _LONGEST_TOKEN)
        trial = await self._trial(scope)
        conversation = trial.conversations.get(agent, Conversation())
        family = await self._family(scope.policy)
        prompt = await self._in_renderer(lambda: conversation.plan(request, family))
        return len(prompt.ids)

    async def close_trial(self, trial_id: str, *, wait_s: float = 30.0) -> str:
        """Take no more calls of a trial and let those under way be recorded; after ``wait_s`` they are dropped.

        Returns:
            Why the model could not answer the last call of an agent, if the platform was the reason; else "".
        """
        trial = self._trials.setdefault(trial_id, Trial())
        trial.closed = True
        if trial.tasks:
            _, late = await asyncio.wait(set(trial.tasks), timeout=wait_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        return next(iter(self._faults.get(trial_id, {}).values()), "")

    def forget_trial(self, trial_id: str) -> None:
        """Drop a published trial."""
        self._trials.pop(trial_id, None)
        self._faults.pop(trial_id, None)

    async def drain(self, *, wait_s: float) -> None:
        """Let all calls end, at most ``wait_s``."""
        tasks = {task for trial in self._trials.values() for task in trial.tasks}
        if tasks:
            await asyncio.wait(tasks, timeout=wait_s)
        self._renderer.shutdown(wait=False)

    @staticmethod
    def _check_model(scope: TokenScope, request: WireRequest) -> None:
        if request.model != scope.model:
            raise ConfigurationError(f"model: {request.model!r} is not served here", hint=f"ask for {scope.model!r}")

    def _check_length(self, n_prompt: int) -> None:
        limit = self._sampler.context_tokens - 1
        if n_prompt > limit:
            raise ContextOverflowError(f"prompt is too long: {n_prompt} tokens > {limit} maximum")

    @staticmethod
    def _check_budget(scope: TokenScope, trial: Trial, n_prompt: int) -> None:
        """Refuse a call that the trial's budget has no room for, in a way that ends a harness."""
        if scope.trial_tokens is not None and trial.n_tokens + n_prompt >= scope.trial_tokens:
            raise AuthorizationError(
                f"this trial has used {trial.n_tokens} of its {scope.trial_tokens} tokens, and asks for {n_prompt} more"
            )
        trial.n_tokens += n_prompt

    @staticmethod
    def _repeated(trial: Trial, conversation: Conversation, agent: str, context: str) -> Call | None:
        """Return the call that this request repeats because its answer never arrived."""
        running = trial.calls.get((agent, context))
        if running is not None and running.abandoned:
            running.abandoned = False
            return running
        turn = conversation.by_context.get(context)
        if turn is None or turn.delivered or turn.n_end != len(turn.segment.ids):
            return None
        answer: asyncio.Task[Answer] = asyncio.create_task(ready(Answer(message=turn.message, turn=turn)))
        return Call(task=answer)

    def _start(self, job: Job) -> Call:
        call = Call(task=asyncio.create_task(self._answer(job)))
        key = (job.agent, job.prompt.context)
        job.trial.calls[key] = call
        job.trial.tasks.add(call.task)
        self.counters["n_calls"] += 1

        def ended(task: asyncio.Task[Answer]) -> None:
            job.trial.tasks.discard(task)
            if job.trial.calls.get(key) is call:
                del job.trial.calls[key]
            if task.cancelled() or task.exception() is not None:
                self.counters["n_failed"] += 1

        call.task.add_done_callback(ended)
        return call

    async def _answer(self, job: Job) -> Answer:
        with self._noting_faults(job.scope, job.agent):
            answer = await self._sample_and_record(job)
        self._faults.get(job.scope.trial_id, {}).pop(job.agent, None)
        return answer

    @contextmanager
    def _noting_faults(self, scope: TokenScope, agent: str) -> Generator[None]:
        try:
            yield
        except _REFUSALS:
            raise
        except SynthError as error:
            self._faults.setdefault(scope.trial_id, {})[agent] = f"{type(error).__name__}: {error}"
            raise

    async def _sample_and_record(self, job: Job) -> Answer:
        started_ms, started_s = self._clock.now_ms(), self._clock.monotonic_s()
        seed = call_seed(job.scope.seed, job.agent, job.n_call)
        room = self._sampler.context_tokens - len(job.prompt.ids)
        granted = min(job.request.max_tokens, job.scope.max_tokens, room)
        with boundary(SamplerError, f"sampling {job.scope.policy}"):
            result = await self._sampler.sample(
                SampleRequest(
                    version=job.scope.policy,
                    prompt_ids=job.prompt.ids,
                    max_tokens=granted,
                    temperature=job.scope.temperature,
                    stop_ids=job.family.stop_ids,
                    seed=seed,
                    session=f"{job.scope.trial_id}/{job.agent}",
                )
            )
        check_result(result, job.scope.policy)
        if job.request.stop_sequences:
            result, stopped_at = await self._in_renderer(lambda: cut(result, job.family, job.request.stop_sequences))
        else:
            stopped_at = None
        parsed = await self._in_renderer(
            lambda: job.family.parse(result.sampled_ids, job.request.tools, job.prompt.ids)
        )
        message = self._message(job, result, parsed, stopped_at)
        async with job.trial.lock:
            interaction = Interaction(
                interaction_id=self._clock.new_id(),
                trial_id=job.scope.trial_id,
                sequence=job.trial.n_recorded,
                agent=job.agent,
                segment=job.conversation.next_segment(job.prompt.base),
                purpose=job.request.purpose,
                sampler_version=result.version,
                prompt_ids=job.prompt.ids,
                sampled_ids=result.sampled_ids,
                logprobs=result.logprobs,
                stop_reason=result.stop_reason,
                temperature=job.scope.temperature,
                seed=seed,
                request=recorded_request(job, granted),
                response=message,
                started_ms=started_ms,
                duration_s=round(self._clock.monotonic_s() - started_s, 6),
            )
            await self._evidence.append(interaction)
            job.trial.n_recorded += 1
            job.trial.n_tokens += len(result.sampled_ids)
            turn = job.conversation.add(interaction, parsed, job.prompt.context)
        self._observe(self._clock.monotonic_s() - started_s)
        self.counters["n_answered"] += 1
        self.counters["n_prompt_tokens"] += len(job.prompt.ids)
        self.counters["n_sampled_tokens"] += len(result.sampled_ids)
        return Answer(message=message, turn=turn)

    def _message(self, job: Job, result: SampleResult, parsed: ParsedTurn, stopped_at: str | None) -> dict[str, Any]:
        return message_of(
            parsed,
            model=job.request.model,
            stop_reason=result.stop_reason,
            stopped_at=stopped_at,
            n_prompt=len(job.prompt.ids),
            n_sampled=len(result.sampled_ids),
            with_thinking=job.request.wants_thinking,
            new_id=self._clock.new_id,
        )

    async def _trial(self, scope: TokenScope) -> Trial:
        """Return live state, rebuilt from the journal after a restart."""
        known = self._trials.get(scope.trial_id)
        if known is not None:
            return known
        family = await self._family(scope.policy)
        staged = await self._evidence.staged(scope.trial_id)
        spent = sum(call.n_prompt_ids + call.n_sampled_ids for call in staged)
        fresh = Trial(n_recorded=len(staged), n_tokens=spent)

        def restore() -> None:
            for interaction in staged:
                fresh.conversations.setdefault(interaction.agent, Conversation()).restore(interaction, family)

        await self._in_renderer(restore)
        trial = self._trials.setdefault(scope.trial_id, fresh)
        self._evict()
        return trial

    def _evict(self) -> None:
        idle = (name for name, trial in self._trials.items() if not trial.tasks)
        while len(self._trials) > _TRIALS_IN_MEMORY and (name := next(idle, None)) is not None:
            del self._trials[name]
            idle = (name for name, trial in self._trials.items() if not trial.tasks)

    async def _family(self, version: str) -> Family:
        """Return the version's format, and have the sampler load the version when it does not serve it yet."""
        try:
            async with self._loading:
                if version not in self._sampler.versions():
                    await self._sampler.load(await asyncio.to_thread(self._policy, version))
                family = self._families.get(version)
                if family is None:
                    family = await asyncio.to_thread(self._family_of, version)
                    self._families[version] = family
        except ConfigurationError as error:
            # A broken policy is no fault of the harness that asked.
            raise SamplerError(error.message, hint=error.hint) from error
        return family

    def _policy(self, version: str) -> PolicyVersion:
        with self._ledger.snapshot() as tx:
            return tx.updates.policy(version)

    async def _in_renderer(self, work: Callable[[], T]) -> T:
        with boundary(SamplerError, "native format"):
            return await asyncio.get_running_loop().run_in_executor(self._renderer, work)
