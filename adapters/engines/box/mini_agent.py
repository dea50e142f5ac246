"""A small native agent: one bash tool over Anthropic Messages. Runs inside a box; python3 and its library alone.

Only C modules are imported: ``json``, ``socket`` and ``subprocess`` take three times the rest of a short trial.

Usage: python3 -S -E -I mini_agent.py CONFIG.json [INSTRUCTION]

Without INSTRUCTION, it is read from the file that the configuration names, else from standard input. The model's
address and token come from ANTHROPIC_BASE_URL and ANTHROPIC_AUTH_TOKEN. The last line of standard output is a JSON
summary. Exit codes: 0 the model finished, 2 the model or this program failed, 3 out of turns.
"""

import _json
import _socket
import os
import select
import sys
import time

TYPE_CHECKING = False  # ``typing`` takes milliseconds to import
if TYPE_CHECKING:
    from typing import Any, TextIO

FINISHED, FAILED, OUT_OF_TURNS = 0, 2, 3
KEPT_BYTES = 1_000_000
OK = 200
RETRIED = (408, 429, 500, 502, 503, 504, 529)
SIGKILL, IGNORED = 9, (13, 25)
"""Linux; Python itself ignores SIGPIPE and SIGXFSZ, which programs expect. ``signal`` would import ``enum``."""
KILLED = 124
"""Exit code of a command past its time, as coreutils' timeout gives it."""


class ModelError(Exception):
    """The model could not be asked."""


class Scanning:
    """What the C half of ``json`` wants to know in order to read strictly typed JSON."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int

    @staticmethod
    def parse_constant(name: str) -> "Any":
        """Refuse NaN and Infinity, which JSON has not."""
        raise ValueError(f"{name} is no JSON")


SCANNING: "Any" = Scanning
_scan = _json.make_scanner(SCANNING)


def decode(text: str) -> "Any":
    """Return the value of a JSON text. Raises ValueError."""
    try:
        value, end = _scan(text, len(text) - len(text.lstrip(" \t\r\n")))
    except StopIteration as error:
        raise ValueError(f"no JSON at character {error.value}: {text[:80]!r}") from None
    if text[end:].strip(" \t\r\n"):
        raise ValueError(f"more than one JSON value, at character {end}")
    return value


def encode(value: "Any") -> str:
    """Return a JSON text. Raises TypeError on what JSON has not."""
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, str):
        return _json.encode_basestring_ascii(value)
    if isinstance(value, (int, float)):
        return repr(value)
    return encode_container(value)


def encode_container(value: "Any") -> str:
    """Return the JSON text of a list or a dictionary. Raises TypeError on anything else."""
    if hasattr(value, "append"):
        return "[" + ",".join([encode(item) for item in value]) + "]"
    if hasattr(value, "items"):
        return "{" + ",".join([f"{encode(name)}:{encode(item)}" for name, item in value.items()]) + "}"
    raise TypeError(f"{type(value).__name__} is no JSON")


class Model:
    """One HTTP/1.1 request per call, over a Unix socket or TCP."""

    def __init__(self, base_url: str, token: str, config: "dict[str, Any]") -> None:
        scheme, _, rest = base_url.partition("://")
        address, _, prefix = rest.partition("/")
        if scheme != "http":
            raise ModelError("ANTHROPIC_BASE_URL must start with http://")
        host, _, port = address.partition(":")
        self.host, self.port = host, int(port or 80)
        self.path = ("/" + prefix).rstrip("/") + "/v1/messages"
        self.token, self.socket_path = token, config["socket"]
        self.timeout_s, self.retry_s = config["model_timeout_s"], config["retry_s"]
        self.streams = config["stream"]

    def ask(self, body: "dict[str, Any]", agent: "list[str]") -> "dict[str, Any]":
        """Return the message; connection loss and passing faults are tried again for a while."""
        data = encode({**body, "stream": True} if self.streams else body).encode()
        deadline = time.monotonic() + self.retry_s
        delay = 0.2
        while True:
            try:
                status, answer = self.post(data, agent)
                if status == OK:
                    text = answer.decode()
                    return read_stream(text) if self.streams else decode(text)
            except (OSError, ValueError) as error:
                status, answer = RETRIED[0], f"{type(error).__name__}: {error}".encode()
            if status not in RETRIED or time.monotonic() + delay > deadline:
                raise ModelError(f"status {status}: {answer[:500].decode(errors='replace')}")
            time.sleep(delay)
            delay = min(delay * 2, 5.0)

    def post(self, data: bytes, agent: "list[str]") -> "tuple[int, bytes]":
        """Send one request in an agent's name and return status and body."""
        lines = f"x-claude-code-agent-id: {agent[-1]}\r\n" if agent else ""
        lines += f"x-claude-code-parent-agent-id: {agent[-2]}\r\n" if agent[1:] else ""
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nAuthorization: Bearer {self.token}\r\n"
            "anthropic-version: 2023-06-01\r\ncontent-type: application/json\r\nUser-Agent: synth-mini\r\n"
            f"{lines}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        received = bytearray()
        connection = self.connect()
        try:
            connection.sendall(head.encode() + data)
            while chunk := connection.recv(65536):
                received += chunk
        finally:
            connection.close()
        return read_response(bytes(received))

    def connect(self) -> "_socket.socket":
        """Return a connection. Raises OSError."""
        family, kind, protocol, address = _socket.AF_UNIX, _socket.SOCK_STREAM, 0, self.socket_path
        if self.socket_path is None:
            family, kind, protocol, _, address = _socket.getaddrinfo(self.host, self.port, 0, _socket.SOCK_STREAM)[0]
        connection = _socket.socket(family, kind, protocol)
        connection.settimeout(self.timeout_s)
        try:
            connection.connect(address)
        except BaseException:
            connection.close()
            raise
        return connection


def read_response(data: bytes) -> "tuple[int, bytes]":
    """Return status and body of a whole HTTP/1.1 response."""
    head, separator, body = data.partition(b"\r\n\r\n")
    if not separator:
        raise ValueError("the connection closed before an answer")
    lines = head.decode("latin-1").split("\r\n")
    pairs = [line.partition(":") for line in lines[1:]]
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = unchunk(body)
    elif len(body) < int(headers.get("content-length", len(body))):
        raise ValueError("the connection closed inside an answer")
    return int(lines[0].split(" ", 2)[1]), body


def read_stream(text: str) -> "dict[str, Any]":
    """Return the message that server-sent events add up to. Raises ValueError when it is cut or failed."""
    message: "dict[str, Any]" = {}
    for line in text.split("\n"):
        event: "Any" = decode(line[5:]) if line.startswith("data:") else {"type": ""}
        if event["type"] == "error":
            raise ValueError(event["error"]["message"])
        if event["type"] == "message_stop":
            for block in message["content"]:
                if "partial_json" in block:
                    block["input"] = decode(block.pop("partial_json") or "{}")
            return message
        message = event.get("message", message)
        add_event(message, event)
    raise ValueError("the stream closed inside an answer")


def add_event(message: "dict[str, Any]", event: "dict[str, Any]") -> None:
    """Add what one event brings."""
    if event["type"] == "content_block_start":
        message["content"].append(event["content_block"])
    elif event["type"] == "message_delta":
        message["stop_reason"] = event["delta"]["stop_reason"]
        message["usage"].update(event["usage"])
    elif event["type"] == "content_block_delta":
        block, delta = message["content"][event["index"]], event["delta"]
        for name in delta.keys() & {"text", "thinking", "signature", "partial_json"}:
            block[name] = block.get(name, "") + delta[name]


def unchunk(data: bytes) -> bytes:
    """Return the content of a chunked body."""
    content = bytearray()
    while True:
        size_line, separator, data = data.partition(b"\r\n")
        if not separator:
            raise ValueError("the connection closed inside an answer")
        size = int(size_line.split(b";")[0], 16)
        if size == 0:
            return bytes(content)
        if len(data) < size + 2:
            raise ValueError("the connection closed inside an answer")
        content += data[:size]
        data = data[size + 2 :]


def run_command(command: str, timeout_s: float, environment: "dict[str, str]") -> "tuple[int, str]":
    """Return exit code and output of a shell command; past its time its whole process group is killed."""
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    reader, writer = os.pipe()
    try:
        pid = os.posix_spawn(
            shell,
            [shell, "-c", command],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, writer, 1),
                (os.POSIX_SPAWN_DUP2, writer, 2),
            ],
            setsid=True,
            setsigdef=IGNORED,
        )
    finally:
        os.close(writer)
    kept, status = read_output(pid, reader, time.monotonic() + timeout_s)
    if status is None:
        # The shell is not reaped yet, so its group exists.
        os.killpg(pid, SIGKILL)
        os.waitpid(pid, 0)
        kept += f"\ntime-out after {timeout_s:g} s".encode()
        return KILLED, kept.decode(errors="replace")
    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return code, kept.decode(errors="replace")


def read_output(pid: int, reader: int, deadline: float) -> "tuple[bytearray, int | None]":
    """Read until the shell has ended; what it left running in the background may keep the pipe open.

    Returns what was kept, and the shell's wait status; None when it had not ended by ``deadline``.
    """
    os.set_blocking(reader, False)
    kept = bytearray()
    open_pipe = True
    try:
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            while open_pipe:
                try:
                    chunk = os.read(reader, 65536)
                except BlockingIOError:
                    break
                open_pipe = bool(chunk)
                kept += chunk[: max(0, KEPT_BYTES - len(kept))]
                if time.monotonic() > deadline:
                    break
            left = deadline - time.monotonic()
            if ended or left <= 0:
                return kept, status if ended else None
            if open_pipe:
                select.select([reader], [], [], min(left, 0.05))
            else:
                time.sleep(min(left, 0.005))
    finally:
        os.close(reader)


def tool_result(exit_code: int, output: str, limit: int) -> str:
    """Say what the model is told; the same text as ``domain.lifecycle.mini_dialogue.tool_result``."""
    text = output.strip()
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n...\n{text[-half:]}"
    if exit_code:
        text = f"{text}\nexit {exit_code}".strip()
    return text or "ok"


class Agent:
    """The loop: ask, run what was asked for, tell, until an answer has no tool call."""

    def __init__(self, config: "dict[str, Any]", model: Model, trajectory: "TextIO", names: "list[str]") -> None:
        self.config, self.model, self.trajectory, self.names = config, model, trajectory, names
        self.messages: "list[dict[str, Any]]" = []
        self.totals = {"turns": 0, "commands": 0, "malformed": 0, "input_tokens": 0, "output_tokens": 0, "agents": 0}
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("ANTHROPIC_")}

    def add(self, role: str, content: "Any") -> None:
        """Append a message and log it."""
        self.messages.append({"role": role, "content": content})
        who = {"agent": self.names[-1]} if self.names else {}
        self.trajectory.write(encode({**self.messages[-1], **who}) + "\n")
        self.trajectory.flush()

    def run(self, instruction: str) -> int:
        """Return the exit code."""
        self.add("user", instruction.strip())
        while self.totals["turns"] < self.config["max_turns"]:
            if self.turn():
                return FINISHED
        return OUT_OF_TURNS

    def turn(self) -> bool:
        """Take one turn; says whether it was the last."""
        reply = self.model.ask(
            {
                "model": self.config["model"],
                "max_tokens": self.config["max_tokens"],
                "system": self.config["system"],
                "tools": self.config["tools"],
                "messages": self.messages,
            },
            self.names,
        )
        self.totals["turns"] += 1
        for name in ("input_tokens", "output_tokens"):
            self.totals[name] += reply["usage"][name]
        if reply["content"]:
            self.add("assistant", reply["content"])
        calls = [block for block in reply["content"] if block["type"] == "tool_use"]
        if calls:
            self.add("user", [self.result(call) for call in calls])
        elif reply["stop_reason"] in ("tool_use", "max_tokens"):
            self.totals["malformed"] += 1
            self.add("user", self.config["malformed"])
        else:
            return True
        return False

    def result(self, call: "dict[str, Any]") -> "dict[str, Any]":
        """Run one call and return its result block."""
        arguments: "Any" = call["input"]
        names = {"bash": "command", "agent": "prompt"}
        declared = [tool["name"] for tool in self.config["tools"]]
        command: "Any" = arguments.get(names.get(call["name"])) if hasattr(arguments, "get") else None
        if call["name"] not in declared or not isinstance(command, str):
            self.totals["malformed"] += 1
            text = self.config["malformed"]
            return {"type": "tool_result", "tool_use_id": call["id"], "content": text, "is_error": True}
        if call["name"] == "agent":
            text = self.delegate(command)
        else:
            self.totals["commands"] += 1
            code, output = run_command(command, self.config["command_timeout_s"], self.environment)
            text = tool_result(code, output, self.config["output_limit"])
        return {"type": "tool_result", "tool_use_id": call["id"], "content": text}

    def delegate(self, prompt: str) -> str:
        """Let a helper work on a part, out of the same turns, and return its last words."""
        self.totals["agents"] += 1
        helper = Agent(self.config, self.model, self.trajectory, [*self.names, f"a{self.config['next_agent']}"])
        self.config["next_agent"] += 1
        helper.totals = self.totals
        if helper.run(prompt) != FINISHED:
            return "out of turns"
        last: "Any" = helper.messages[-1]
        blocks: "Any" = last["content"] if last["role"] == "assistant" else []
        return "\n".join([block["text"] for block in blocks if block["type"] == "text"]) or "ok"


def read_instruction(config: "dict[str, Any]", arguments: "list[str]") -> str:
    """Return what to do, from wherever it was put."""
    if arguments:
        return arguments[0]
    if config["instruction_file"]:
        with open(config["instruction_file"], encoding="utf-8") as file:
            return file.read()
    return sys.stdin.read()


def main(arguments: "list[str]") -> int:
    """Run the agent; returns the exit code."""
    with open(arguments[0], encoding="utf-8") as file:
        config = decode(file.read())
    instruction = read_instruction(config, arguments[1:])
    os.makedirs(config["logs"], exist_ok=True)
    with open(os.path.join(config["logs"], "trajectory.jsonl"), "w", encoding="utf-8") as trajectory:
        base_url, token = os.environ["ANTHROPIC_BASE_URL"], os.environ["ANTHROPIC_AUTH_TOKEN"]
        agent = Agent(config, Model(base_url, token, config), trajectory, [])
        try:
            code, reason = agent.run(instruction), ""
        except (ModelError, KeyError, TypeError, ValueError) as error:
            code, reason = FAILED, f"{type(error).__name__}: {error}"
    reason = "out of turns" if code == OUT_OF_TURNS else reason
    if reason:
        print(reason, file=sys.stderr)
    print(encode({"exit_code": code, "error": reason, **agent.totals}))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
