"""What the ``mini`` engine says to the model: one source for the box program and for demonstrations.

The box program receives these strings in its configuration file, and demonstrations are rendered from the same
ones, so a policy trained on demonstrations sees at run time exactly the prompts it learned from.
"""

from domain.records.chat import ChatMessage, ToolSpec

SYSTEM_PROMPT = "Solve the task with bash. Then say done."

BASH = ToolSpec(
    name="bash",
    description="Run a command.",
    schema={
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
    },
)

AGENT = ToolSpec(
    name="agent",
    description="Let a helper do a part and report.",
    schema={
        "type": "object",
        "properties": {"prompt": {"type": "string"}},
        "required": ["prompt"],
    },
)
"""Declared where the profile allows sub-agents."""

MALFORMED = "Bad call. Call bash with a command."
"""What the model is told when its turn holds no call that can be read."""

OUTPUT_LIMIT_CHARACTERS = 400
"""Longer command output is cut in the middle before the model sees it."""


def opening(instruction: str) -> tuple[ChatMessage, ...]:
    """Return the first messages of a conversation about ``instruction``."""
    return (
        ChatMessage(role="system", content=SYSTEM_PROMPT),
        ChatMessage(role="user", content=instruction.strip()),
    )


def tool_result(exit_code: int, output: str) -> str:
    """Return what the model is told about a command: its output, and its exit code unless 0."""
    text = output.strip()
    if len(text) > OUTPUT_LIMIT_CHARACTERS:
        half = OUTPUT_LIMIT_CHARACTERS // 2
        text = f"{text[:half]}\n...\n{text[-half:]}"
    if exit_code:
        text = f"{text}\nexit {exit_code}".strip()
    return text or "ok"
