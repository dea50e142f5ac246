"""How Qwen3-Coder shows tools: a list of tags.

Source: chat template of Qwen3-Coder (vllm-project/vllm ``examples/tool_chat_template_qwen3coder.jinja``).
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from domain.records.canonical import Json
from domain.records.chat import ToolSpec

_SYSTEM = "You are Qwen, a helpful AI assistant that can interact with a computer to solve tasks."
_AFTER = """</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within \
<tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after
- If there is no function call available, answer the question like normal with your current knowledge and do not tell \
the user about function calls
</IMPORTANT>"""


def coder_tools(system: str | None, tools: Sequence[ToolSpec]) -> str | None:
    """Return the text of the system turn; None when there is none."""
    if not tools:
        return system
    lines = ["# Tools\n\nYou have access to the following functions:\n\n<tools>"]
    for tool in tools:
        lines += _tool(tool)
    return f"{_SYSTEM if system is None else system}\n\n" + "\n".join([*lines, _AFTER])


def _tool(tool: ToolSpec) -> Iterator[str]:
    yield f"<function>\n<name>{tool.name}</name>"
    yield f"<description>{tool.description.strip()}</description>"
    yield "<parameters>"
    properties = tool.schema.get("properties")
    for name, fields in properties.items() if isinstance(properties, Mapping) else ():
        yield f"<parameter>\n<name>{name}</name>"
        if isinstance(fields, Mapping):
            yield from _fields(fields)
        yield "</parameter>"
    yield from _others(tool.schema, ("type", "properties"))
    yield "</parameters>\n</function>"


def _fields(fields: Mapping[str, Json]) -> Iterator[str]:
    if "type" in fields:
        yield f"<type>{fields['type']}</type>"
    if "description" in fields:
        yield f"<description>{str(fields['description']).strip()}</description>"
    yield from _others(fields, ("name", "type", "description"))


def _others(fields: Mapping[str, Json], handled: Sequence[str]) -> Iterator[str]:
    for key, value in fields.items():
        if key not in handled:
            nested = isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, str))
            yield f"<{key}>{json.dumps(value, ensure_ascii=False) if nested else value}</{key}>"
