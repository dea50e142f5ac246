"""Published, immutable things: task sets, profiles, base policies."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Select, bindparam, insert, or_, select

from adapters.ledgers import schema
from adapters.ledgers.session import Session, decoded, encoded
from domain.errors import ConflictError, NotFoundError
from domain.records.model import BasePolicy, PolicyVersion
from domain.records.names import Reference, parse_reference
from domain.records.profile import Profile
from domain.records.task import ObjectRef, TaskSet
from domain.records.wording import did_you_mean

_SETS, _PROFILES, _PUBLISHED, _POLICIES = (
    schema.task_sets,
    schema.profiles,
    schema.published_profiles,
    schema.base_policies,
)

_ADD_SET = insert(_SETS)
_SET = select(_SETS).where(_SETS.c.reference == bindparam("reference"))
_ALL_SETS = select(_SETS.c.reference).order_by(_SETS.c.n)

_ADD_PROFILE = insert(_PROFILES)
_PROFILE = select(_PROFILES.c.record).where(_PROFILES.c.digest == bindparam("digest"))
_PUBLISH_PROFILE = insert(_PUBLISHED)
_PUBLISHED_PROFILE = select(_PUBLISHED.c.digest).where(_PUBLISHED.c.reference == bindparam("reference"))
_ALL_PROFILES = select(_PUBLISHED.c.reference, _PUBLISHED.c.digest).order_by(_PUBLISHED.c.n)

_ADD_POLICY = insert(_POLICIES)
_POLICY_NAMED = select(_POLICIES.c.digest).where(_POLICIES.c.name == bindparam("name"))
_POLICY = (
    select(_POLICIES.c.record)
    .where(or_(_POLICIES.c.name == bindparam("key"), _POLICIES.c.digest == bindparam("key")))
    .order_by(_POLICIES.c.n)
    .limit(1)
)
_SERVED_POLICY = (
    select(_POLICIES.c.digest).where(_POLICIES.c.served_name == bindparam("name")).order_by(_POLICIES.c.n).limit(1)
)
_ALL_POLICIES = select(_POLICIES.c.record).order_by(_POLICIES.c.n)


_WAYS = {
    "task set": "`synth task-set list` shows what there is, `synth task-set publish DIRECTORY TEAM/NAME@vN` adds one",
    "profile": "`synth profile list` shows what there is; a profile that is not published is written @FILE",
    "base policy": "`synth policy list` shows what there is, `synth policy make @RECIPE` makes one",
}


def served_name(digest: str) -> str:
    """Return the name a base policy is served under: ``base-<12 hex of its digest>``."""
    return f"base-{digest[:12]}"


class SqlCatalog:
    """The catalog inside one transaction. See domain.ledger_ports.Catalog."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def add_task_set(self, task_set: TaskSet, record: ObjectRef) -> None:
        """Publish; the same digest again is fine. Raises ConflictError."""
        reference = str(task_set.reference)
        if self._is_held(_SET, "digest", task_set.digest, reference=reference):
            return
        self._session.run(
            _ADD_SET,
            {
                "reference": reference,
                "digest": task_set.digest,
                "object_digest": record.digest,
                "object_bytes": record.size_bytes,
                "record": encoded(task_set),
            },
        )

    def task_set(self, reference: Reference) -> tuple[TaskSet, ObjectRef]:
        """Return the set and its record in the store. Raises NotFoundError."""
        row = self._session.one(_SET, reference=str(reference))
        if row is None:
            raise _unknown("task set", str(reference), [str(item) for item in self.task_sets()])
        return decoded(TaskSet, row.record), ObjectRef(digest=row.object_digest, size_bytes=row.object_bytes)

    def task_sets(self) -> tuple[Reference, ...]:
        """Return all, oldest first."""
        return tuple(
            parse_reference(row.reference, field="task_sets.reference") for row in self._session.all(_ALL_SETS)
        )

    def add_profile(self, profile: Profile, digest: str, reference: Reference | None) -> None:
        """Keep under the digest; publish when a reference is given. Raises ConflictError."""
        if self._session.one(_PROFILE, digest=digest) is None:
            self._session.run(_ADD_PROFILE, {"digest": digest, "record": encoded(profile)})
        if reference is None or self._is_held(_PUBLISHED_PROFILE, "digest", digest, reference=str(reference)):
            return
        self._session.run(_PUBLISH_PROFILE, {"reference": str(reference), "digest": digest})

    def profile(self, key: str) -> Profile:
        """Return by digest or published reference. Raises NotFoundError."""
        published = self._session.one(_PUBLISHED_PROFILE, reference=key)
        row = self._session.one(_PROFILE, digest=key if published is None else published.digest)
        if row is None:
            raise _unknown("profile", key, [name for name, _ in self.profiles()])
        return decoded(Profile, row.record)

    def profiles(self) -> tuple[tuple[str, str], ...]:
        """Return (reference, digest), oldest first."""
        return tuple((row.reference, row.digest) for row in self._session.all(_ALL_PROFILES))

    def add_base_policy(self, policy: BasePolicy) -> None:
        """Keep under name and digest; the same again is fine. Raises ConflictError."""
        if self._is_held(_POLICY_NAMED, "digest", policy.digest, name=policy.name):
            return
        self._session.run(
            _ADD_POLICY,
            {
                "name": policy.name,
                "digest": policy.digest,
                "served_name": served_name(policy.digest),
                "record": encoded(policy),
            },
        )

    def base_policy(self, key: str) -> BasePolicy:
        """Return by name or digest. Raises NotFoundError."""
        row = self._session.one(_POLICY, key=key)
        if row is None:
            raise _unknown("base policy", key, [item.name for item in self.base_policies()])
        return decoded(BasePolicy, row.record)

    def base_policies(self) -> tuple[BasePolicy, ...]:
        """Return all, oldest first."""
        return tuple(decoded(BasePolicy, row.record) for row in self._session.all(_ALL_POLICIES))

    def _is_held(self, statement: Select[*tuple[Any, ...]], column: str, value: str, **key: str) -> bool:
        """Say whether the name is taken by the same content. Raises ConflictError when by another."""
        row = self._session.one(statement, **key)
        if row is None:
            return False
        held = getattr(row, column)
        if held != value:
            (name,) = key.values()
            message = f"{name} is already {held[:12]}, not {value[:12]}"
            raise ConflictError(message, hint="published things never change: use another name or version")
        return True


def base_version(session: Session, name: str) -> PolicyVersion | None:
    """Return the base policy served under ``name``."""
    row = session.one(_SERVED_POLICY, name=name)
    return None if row is None else PolicyVersion(name=name, base=row.digest)


def _unknown(kind: str, key: str, known: Iterable[str]) -> NotFoundError:
    """Return the error for a name that nothing has: what was meant perhaps, and where names are seen and made."""
    meant = did_you_mean(key, known)
    return NotFoundError(f"{kind} {key!r} is not in the ledger", hint=f"{meant} {_WAYS[kind]}".lstrip())
