"""What a command of a test script, a solution or a Dockerfile does that makes tomorrow's verdict another one.

The rules and their names are those of Harbor's linter; ``tests/services/test_task_lint.py`` holds both against each
other. Source: Harbor 0.26 ``lint``; facts/harbor.md section 1.4.
"""

import re
from collections.abc import Iterator, Sequence

UNPINNED = "unpinned-python-dependency"
RUNTIME_INSTALL = "verifier-runtime-install"
DOWNLOAD = "verifier-network-download"

_INSTALLERS: tuple[tuple[frozenset[str], ...], ...] = (
    (frozenset({"pip", "pip3"}), frozenset({"install"})),
    (frozenset({"python", "python3"}), frozenset({"-m"}), frozenset({"pip"}), frozenset({"install"})),
    (frozenset({"uv"}), frozenset({"pip", "tool"}), frozenset({"install"})),
    (frozenset({"uvx"}),),
)
_TAKE_A_VALUE = frozenset(
    {
        *("-r", "--requirement", "-c", "--constraint", "-i", "--index-url", "--extra-index-url", "-t", "--target"),
        *("--prefix", "--root", "--cache-dir", "--python", "-p", "--log", "--src", "--find-links", "-f", "--platform"),
        *("--config-settings", "-C", "--index", "--default-index", "--from"),
    }
)
_TEST_TOOLS = frozenset({"pytest", "pytest-json-ctrf"})
_SPECIFIER = re.compile(r"(===|==|~=|!=|<=|>=|<|>)\s*([^\s,;]+)")
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\s*(?:\[[^\]]*\])?\s*"
    r"(\(?(?:\s*(?:===|==|~=|!=|<=|>=|<|>)\s*[^\s,;()]+\s*,?)*\)?)\s*(?:;.*)?"
)
_PINNED_URL = re.compile(r"@[0-9a-fA-F]{40}(?:#|$)|#sha256=[0-9a-fA-F]{64}$")
_HOST = re.compile(r"(?:--url=)?[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#]*@)?([^/:?#]+)")
_SSH_URL = re.compile(r"git@[^:]+\.[^:]+:")


def broken_rules(
    command: Sequence[str], following: Sequence[str], *, is_separate_verifier: bool
) -> Iterator[tuple[str, str]]:
    """Yield (rule, what is wrong) of one command.

    Args:
        command: its words.
        following: those of the command that reads its output; empty when none does.
        is_separate_verifier: whether a separate verifier runs it, whose image could hold what it fetches.
    """
    packages = installed(command)
    is_constrained = any(word.partition("=")[0] in {"-c", "--constraint"} for word in command)
    if not is_constrained and any(is_unpinned(package) for package in packages):
        yield UNPINNED, f"{' '.join(packages)}: another version tomorrow; write NAME==VERSION or a constraint file"
    if not is_separate_verifier:
        return
    names = {re.split(r"[<>=!~\[]", package)[0].lower().replace("_", "-") for package in packages}
    if names & _TEST_TOOLS and not {"--offline", "--no-index"} & set(command):
        yield RUNTIME_INSTALL, "put the test tools into the verifier's image"
    if downloads(command, following):
        yield DOWNLOAD, "put what is fetched into the verifier's image"


def installed(command: Sequence[str]) -> list[str]:
    """Return the packages that a command installs with pip or uv, as written."""
    for start in _INSTALLERS:
        if len(command) >= len(start) and all(word in known for word, known in zip(command, start, strict=False)):
            return _packages(command[len(start) :], is_run=command[0] == "uvx")
    return []


def _packages(words: Sequence[str], *, is_run: bool) -> list[str]:
    packages: list[str] = []
    left = iter(words)
    for word in left:
        flag, given, value = word.partition("=")
        if flag in {"--with", "-w", "-e", "--editable"}:
            value = value if given else next(left, "")
            if flag in {"--with", "-w"} or "://" in value:
                packages.append(value)
        elif flag in _TAKE_A_VALUE:
            value = value if given else next(left, "")
        elif not word.startswith("-"):
            if is_run:
                break
            packages.append(word)
    renews_pip = packages == ["pip"] and bool({"-U", "--upgrade"} & set(words))
    return [] if renews_pip else packages


def is_unpinned(package: str) -> bool:
    """Say whether a requirement may mean another version tomorrow; what is no requirement is not."""
    if not package or "$" in package or package.startswith((".", "/", "file:")):
        return False
    if "://" in package:
        return _PINNED_URL.search(package) is None
    if package.endswith((".whl", ".tar.gz", ".zip")) or _REQUIREMENT.fullmatch(package) is None:
        return False
    head = package.partition(";")[0]
    return not any(kind in {"==", "==="} and "*" not in version for kind, version in _SPECIFIER.findall(head))


def downloads(command: Sequence[str], following: Sequence[str]) -> bool:
    """Say whether a command fetches something from outside that it keeps or runs; a probe keeps nothing."""
    name, *words = command
    if name not in {"curl", "wget", "git"} or not any(map(_is_outside, words)):
        return False
    if name == "git":
        return words[:1] == ["clone"]
    if tuple(following[:1]) in {("sh",), ("bash",)}:
        return True
    if {"--spider", "-O-", "-qO-"} & set(words):
        return False
    output = _output(name, words)
    if output is not None:
        return output not in {"", "-", "/dev/null"} and "$" not in output
    return name == "wget" or any(word.startswith(">") and word != ">/dev/null" for word in words)


def _is_outside(word: str) -> bool:
    url = _HOST.match(word)
    host = "" if url is None else url[1].lower()
    is_here = host.startswith("127.") or host.endswith(".localhost")
    return ("." in host and not is_here) or _SSH_URL.match(word) is not None


def _output(name: str, words: Sequence[str]) -> str | None:
    """Return the file that the first such option names; None without one."""
    for position, word in enumerate(words):
        if name == "curl" and word == "-O":
            return "as the server names it"
        if word in {"-o", "--output", "-O", "--output-document", ">"}:
            return words[position + 1] if position + 1 < len(words) else ""
        if word.startswith(("--output=", "--output-document=")):
            return word.partition("=")[2]
        if name == "curl" and word.startswith("-o"):
            return word[2:]
    return None
