"""What an exception that Harbor recorded says about a trial, by the name of its class.

Harbor takes a trial with an exception that it does not know for validly scored; here nobody's work is judged by a
fault that nobody names. Source: Harbor 0.26 ``models/trial/error_policy.py``; facts/harbor.md section 3.2.
"""

from domain.records.trial import TrialOutcome

_AGENT_ERRORS = frozenset(
    {
        "NonZeroAgentExitCodeError",
        "ContextWindowExceededError",
        "OutputTokenExceededError",
        "ContextLengthExceededError",
        "OutputLengthExceededError",
        "AgentSafetyRefusalError",
        "ContentPolicyViolationError",
    }
)
"""The agent's own fault: Harbor grades what it left, and the reward is valid."""
_OF_THE_VERIFIER = frozenset(
    {
        "AddTestsDirError",
        "DownloadVerifierDirError",
        "VerifierTimeoutError",
        "RewardFileNotFoundError",
        "RewardFileEmptyError",
        "VerifierOutputParseError",
    }
)
"""The agent had ended; only the verdict is missing."""


def outcome_of(exception: str | None) -> TrialOutcome:
    """Return how a phase ended that recorded this class of exception, None without one."""
    if exception is None or exception in _OF_THE_VERIFIER:
        return TrialOutcome.COMPLETED
    if exception == "AgentTimeoutError":
        return TrialOutcome.AGENT_TIMEOUT
    if exception == "CancelledError":
        return TrialOutcome.CANCELLED
    return TrialOutcome.AGENT_ERROR if exception in _AGENT_ERRORS else TrialOutcome.INFRA_ERROR


def is_of_the_verifier(exception: str | None) -> bool:
    """Say whether the class tells of a verdict that is missing, not of the agent's work."""
    return exception in _OF_THE_VERIFIER
