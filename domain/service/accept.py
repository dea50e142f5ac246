"""Acceptance: one transaction turns a submission into a pinned, durable experiment."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from domain.errors import AdmissionError, ConfigurationError, NotFoundError
from domain.ledger_ports import Transaction
from domain.lifecycle.demand import never_fits, shaped
from domain.lifecycle.lease import LEASE_TTL_S
from domain.lifecycle.refusals import BringsToolchains, task_refusals, toolchains_of
from domain.lifecycle.schedule import n_units
from domain.lifecycle.time_needed import too_short
from domain.records.canonical import digest_of
from domain.records.experiment import (
    Experiment,
    ExperimentKind,
    ExperimentSpec,
    ExperimentState,
    Unit,
    UnitState,
)
from domain.records.model import PolicyVersion
from domain.records.names import parse_reference, ulid, unit_key
from domain.records.profile import Plan, Profile
from domain.records.task import Task, TaskSet
from domain.records.wording import counted, did_you_mean, one_of
from domain.service.plan_checks import check_plan
from domain.service.platform import Platform
from domain.service.publish import engine_of, publish_profile
from domain.service.sources import written_in

_LONGEST_KEY = 200
"""Characters of an idempotency key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What an operator asks for, by reference; acceptance pins it."""

    kind: ExperimentKind
    task_set: str
    """``team/name@v1``."""
    actor: Profile | str
    """A profile, or the digest or reference of a kept one."""
    plan: Plan
    assessor: str = "verifier"
    actor_file: str = ""
    """The file of ``actor``, for messages; empty: it was written elsewhere. So ``plan_file``."""
    plan_file: str = ""
    model: str | None = None
    """``base:NAME``, ``checkpoint:ID``; overrides the profile's."""
    source: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A durable identity; ``created`` is False when the idempotency key was known."""

    experiment: Experiment
    created: bool


def accept(platform: Platform, submission: Submission, *, holder: str | None = None) -> Accepted:
    """Check, pin and admit a submission. Nothing has run, and nothing is written when this raises.

    The same idempotency key with the same pinned spec returns the same experiment.

    Args:
        platform: the ports.
        submission: what is asked for.
        holder: a worker that runs the first unit of a new experiment itself. It holds the unit's lease from the very
            transaction of acceptance, so that no dispatcher sees the unit waiting, unless the lease expires.

    Raises:
        ConfigurationError: a document is wrong; names the field.
        AdmissionError: the sandbox, engine or model cannot do what the tasks ask.
        NotFoundError: a reference does not exist.
        ConflictError: the key holds another spec.
    """
    with written_in({"plan": submission.plan_file}):
        return _accept(platform, submission, holder)


def _accept(platform: Platform, submission: Submission, holder: str | None) -> Accepted:
    check_plan(submission.plan, submission.kind)
    _check_key(submission.idempotency_key)
    reference = parse_reference(submission.task_set, field="dataset")
    actor = _actor(platform, submission.actor)
    with written_in({f"profile {actor.name!r}": submission.actor_file}):
        with platform.ledger.snapshot() as tx:
            task_set, _ = tx.catalog.task_set(reference)
            policy = _policy(tx, platform, actor, submission)
        _admit_tasks(platform, submission.plan, task_set, actor)
        _admit_harness(platform, submission.plan, actor, policy)
        _check_evaluation(platform, submission.plan)
        actor_digest = publish_profile(platform, actor)
    spec = ExperimentSpec(
        kind=submission.kind,
        task_set=reference,
        task_set_digest=task_set.digest,
        actor_digest=actor_digest,
        assessor=submission.assessor,
        plan=submission.plan,
        policy=policy,
        source=submission.source,
        labels=submission.labels,
    )
    return _commit(platform, spec, task_set.n_tasks, submission.idempotency_key, holder)


def _check_key(key: str | None) -> None:
    """An empty key, from a variable that is not set, would make all such submissions one."""
    if key is not None and not (key.isprintable() and 1 <= len(key) <= _LONGEST_KEY):
        raise ConfigurationError(
            f"idempotency_key: {key[:80]!r} is no key", hint=f"write 1 to {_LONGEST_KEY} printable characters"
        )


def _commit(platform: Platform, spec: ExperimentSpec, n_tasks: int, key: str | None, holder: str | None) -> Accepted:
    now_ms = platform.clock.now_ms()
    total = n_units(spec.kind, spec.plan, n_tasks)
    wanted = Experiment(
        experiment_id=f"{spec.kind.prefix}-{platform.clock.new_id()}",
        spec=spec,
        spec_digest=digest_of(spec),
        state=ExperimentState.ACCEPTED,
        n_units=total,
        created_ms=now_ms,
    )
    with platform.ledger.begin() as tx:
        held = tx.experiments.add(wanted, key)
        if held.experiment_id != wanted.experiment_id:
            return Accepted(experiment=held, created=False)
        tx.events.append(
            held.experiment_id, "experiment.accepted", now_ms, None, {"spec_digest": held.spec_digest, "n_units": total}
        )
        admitted = 1 if spec.kind is ExperimentKind.TRAINING else total
        for index in range(admitted):
            admit_unit(tx, held, index, spec.policy, now_ms)
        if holder is not None:
            tx.units.acquire(unit_key(held.experiment_id, 0), holder, now_ms, LEASE_TTL_S)
            tx.experiments.set_state(held.experiment_id, ExperimentState.RUNNING)
            held = tx.experiments.get(held.experiment_id)
    return Accepted(experiment=held, created=True)


def admit_unit(tx: Transaction, experiment: Experiment, index: int, policy: PolicyVersion | None, now_ms: int) -> None:
    """Admit the ``index``-th unit with the policy it samples from; again is fine."""
    unit = unit_key(experiment.experiment_id, index)
    added = tx.units.add(
        Unit(
            unit=unit,
            experiment_id=experiment.experiment_id,
            index=index,
            state=UnitState.ADMITTED,
            generation=0,
            policy=policy,
        )
    )
    if added:
        body = {"policy": policy.name if policy else None}
        tx.events.append(experiment.experiment_id, "unit.admitted", now_ms, unit, body)


def derived_id(prefix: str, *parts: str) -> str:
    """Return an idempotency key that any process derives alike: ``eval:<hex>``."""
    return f"{prefix}:{digest_of(list(parts))[:32]}"


def sortable_id(milliseconds: int, seed: str) -> str:
    """Return a ULID whose random part is derived from ``seed``."""
    return ulid(milliseconds, bytes.fromhex(digest_of(seed)[:20]))


def _actor(platform: Platform, actor: Profile | str) -> Profile:
    if isinstance(actor, Profile):
        return actor
    with platform.ledger.snapshot() as tx:
        return tx.catalog.profile(actor)


def _policy(tx: Transaction, platform: Platform, actor: Profile, submission: Submission) -> PolicyVersion | None:
    engine = engine_of(platform, actor)
    model = submission.model or actor.model
    if not engine.needs_model:
        if submission.kind is ExperimentKind.TRAINING:
            engines = sorted(platform.engines.items())
            raise ConfigurationError(
                f"profile {actor.name!r}: engine: {actor.engine!r} samples no model",
                hint=f"use one that does: {', '.join(name for name, each in engines if each.needs_model)}",
            )
        return None
    if model is None:
        raise ConfigurationError(
            f"profile {actor.name!r}: model: missing", hint="write base:NAME or checkpoint:ID, or pass --model"
        )
    try:
        return resolve_model(tx, model)
    except (ConfigurationError, NotFoundError) as error:
        if submission.model is not None:
            raise
        where = f"profile {actor.name!r}: model"
        raise type(error)(f"{where}: {error.message.removeprefix('model: ')}", hint=error.hint) from error


def resolve_model(tx: Transaction, model: str) -> PolicyVersion:
    """Return the policy version of ``base:NAME`` or ``checkpoint:ID``.

    Raises:
        ConfigurationError: the reference has another form.
        NotFoundError: it names nothing.
    """
    kind, _, name = model.partition(":")
    if kind == "base" and name:
        return tx.updates.policy(f"base-{tx.catalog.base_policy(name).digest[:12]}")
    if kind == "checkpoint" and name:
        return tx.updates.checkpoint(name).version
    meant = did_you_mean(model, [f"base:{policy.name}" for policy in tx.catalog.base_policies()])
    raise ConfigurationError(
        f"model: {model!r} is not a model reference", hint=f"{meant} Write base:NAME or checkpoint:ID".lstrip()
    )


def _admit_tasks(platform: Platform, plan: Plan, task_set: TaskSet, actor: Profile) -> None:
    sandbox = platform.sandboxes.get(plan.sandbox)
    if sandbox is None:
        hint = one_of(plan.sandbox, sorted(platform.sandboxes))
        raise ConfigurationError(f"plan: sandbox: no sandbox {plan.sandbox!r}", hint=hint)
    refused: list[str] = []
    n_refused = 0
    for kind in task_set.classes:
        task = shaped(platform.records.load(Task, kind.example.record), plan)
        reasons = task_refusals(task, sandbox, platform.engines[actor.engine], platform.variables)
        if reasons := (*reasons, *never_fits(task, platform.budget), *too_short(task, plan)):
            alike = f" and {kind.n_tasks - 1} like it" if kind.n_tasks > 1 else ""
            refused.append(f"{kind.example.name}{alike}: {'; '.join(reasons)}")
            n_refused += kind.n_tasks
    if refused:
        shown = "\n  ".join(refused[:10])
        more = f"\n  and {len(refused) - 10} kinds more" if len(refused) > 10 else ""  # noqa: PLR2004 - a readable list
        raise AdmissionError(
            f"sandbox {plan.sandbox!r} cannot realise {n_refused} of {counted(task_set.n_tasks, 'task')}:\n"
            f"  {shown}{more}"
        )


def _admit_harness(platform: Platform, plan: Plan, actor: Profile, policy: PolicyVersion | None) -> None:
    """Refuse a harness that this machine has not got, or a model that is too small for it."""
    engine = platform.engines[actor.engine]
    toolchains_of(actor, engine, platform.sandboxes[plan.sandbox])
    if policy is not None and isinstance(engine, BringsToolchains):
        with platform.ledger.snapshot() as tx:
            base = tx.catalog.base_policy(policy.base)
        engine.check_model(actor, context_tokens=base.context_tokens, max_tokens=plan.sampling.max_tokens)


def _check_evaluation(platform: Platform, plan: Plan) -> None:
    if plan.evaluate_on is not None:
        reference = parse_reference(plan.evaluate_on, field="plan: evaluate_on")
        with platform.ledger.snapshot() as tx:
            tx.catalog.task_set(reference)
