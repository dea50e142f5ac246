"""Instructions as the agent gets them: without the marks that keep benchmarks out of training data."""


def strip_canary(text: str) -> str:
    """Return an instruction without leading canary lines and the blank lines after them.

    Source: Harbor 0.26 ``models/task/task.py``: HTML comment or ``#`` lines that hold "canary".
    """
    lines = text.splitlines(keepends=True)
    start = 0
    while start < len(lines) and _is_canary(lines[start]):
        start += 1
    if start:
        while start < len(lines) and not lines[start].strip():
            start += 1
    return "".join(lines[start:])


def _is_canary(line: str) -> bool:
    text = line.strip().lower()
    return "canary" in text and (text.startswith("#") or (text.startswith("<!--") and text.endswith("-->")))
