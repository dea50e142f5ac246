"""Every error Synth raises, one class for each boundary.

    SynthError
    ├── ConfigurationError      a document or setting is wrong; nothing has run
    │   ├── TaskError           a task directory or task set is wrong
    │   └── AdmissionError      a sandbox, engine or sampler cannot realise what was asked
    ├── NotFoundError           no such experiment, task set, profile, checkpoint, object
    ├── ConflictError           the same identity already holds something else
    ├── AuthorizationError      a token is missing, expired, revoked or for something else
    ├── SandboxError            a box could not be created, used or destroyed
    │   └── BoxContentError         what lies in a box cannot be taken out of it
    ├── AgentError              the harness itself failed
    ├── VerifierError           assessment could not be completed (outcome: ungraded)
    ├── SamplerError            the model could not answer
    │   ├── ContextOverflowError    the prompt does not fit
    │   └── OverloadError           it has no room now; asked again, it may
    ├── TrainerError            a learning operation failed or was refused
    ├── StoreError              an object could not be written, read or verified
    ├── LedgerError             the ledger could not commit
    │   ├── FenceError          the writer no longer holds the lease; nothing changed
    │   └── UnresolvedUpdateError   an optimizer step may or may not have happened
    ├── EvidenceError           an interaction is missing, torn or misaligned
    └── DatumError              a trajectory cannot become a training row

A message says what is wrong and where; ``hint`` says what to do. Errors are picklable. Adapters translate
vendor exceptions once, with :func:`boundary`. A failed trial is a record, not an exception.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import ClassVar


class SynthError(Exception):
    """Base of every error of the platform."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        """Store what is wrong and where (``message``) and what to do about it (``hint``)."""
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Return the message followed by the hint."""
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the hint when pickled."""
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(kind: type[SynthError], message: str, hint: str) -> SynthError:
    return kind(message, hint=hint)


class ConfigurationError(SynthError):
    """A document or setting is wrong; the message names the file and the field."""


class TaskError(ConfigurationError):
    """A task directory or task set is wrong."""


class AdmissionError(ConfigurationError):
    """A sandbox, engine or sampler cannot realise what was asked; nothing has run."""


class NotFoundError(SynthError):
    """The named thing does not exist."""


class ConflictError(SynthError):
    """The identity is taken by something else."""


class AuthorizationError(SynthError):
    """The token is missing, expired, revoked or scoped to something else."""


class SandboxError(SynthError):
    """A box could not be created, used or destroyed: infrastructure, never the agent."""

    is_permanent: ClassVar[bool] = False
    """Whether the same box would fail again, so that another try is waste."""


class BoxContentError(SandboxError):
    """What lies in a box cannot be taken out: a device, a link that leaves it, too much. Who worked there did it."""


class AgentError(SynthError):
    """The harness itself failed."""


class VerifierError(SynthError):
    """Assessment could not be completed; the outcome is ungraded, never zero."""


class SamplerError(SynthError):
    """The model could not answer."""


class ContextOverflowError(SamplerError):
    """The prompt does not fit the model's context."""


class OverloadError(SamplerError):
    """The model has no room for another call now."""


class TrainerError(SynthError):
    """A learning operation failed or was refused."""


class StoreError(SynthError):
    """An object could not be written, read or verified."""


class LedgerError(SynthError):
    """The ledger could not commit."""


class FenceError(LedgerError):
    """The writer no longer holds the lease; the transaction changed nothing."""


class UnresolvedUpdateError(LedgerError):
    """An optimizer step may or may not have happened; continuation is blocked."""


class EvidenceError(SynthError):
    """An interaction is missing, torn or misaligned."""


class DatumError(SynthError):
    """A trajectory cannot become a training row."""


@contextmanager
def boundary(kind: type[SynthError], doing: str) -> Generator[None]:
    """Translate whatever escapes the block into ``kind``; our own errors pass unchanged.

    Args:
        kind: the error class of this boundary.
        doing: what was being done, for the message: "exec in box b-1".

    Raises:
        SynthError: of class ``kind``, chained to the original exception.
    """
    try:
        yield
    except SynthError:
        raise
    except Exception as error:
        raise kind(f"{doing}: {type(error).__name__}: {error}") from error
