"""Native formats under the names of the recorded vectors (``tests/golden/native_formats.json``)."""

from collections.abc import Callable
from functools import cache

from tokenizers import Tokenizer

from adapters.families.deepseek_v3 import DeepSeekR1Family, DeepSeekV3Family, DeepSeekV31Family
from adapters.families.deepseek_v4 import DeepSeekV4Family, DeepSeekV41Family
from adapters.families.glm import Glm5Family, Glm45Family, Glm46Family, Glm47Family, Glm53Family
from adapters.families.gpt_oss import GptOssFamily
from adapters.families.kimi import KimiK2Family, KimiK25Family
from adapters.families.native_family import NativeFamily
from adapters.families.qwen3 import Qwen3Family, Qwen3InstructFamily, Qwen3ThinkingFamily, Qwen25Family
from adapters.families.qwen3_xml import Qwen3CoderFamily, Qwen35Family, Qwen36Family, Qwen38Family
from domain.records.family import FamilyOptions, History
from tests.fakes.native_tokenizers import byte_vocabulary, real_vocabulary

FAMILIES: tuple[type[NativeFamily], ...] = (
    *(Qwen25Family, Qwen3Family, Qwen3InstructFamily, Qwen3ThinkingFamily, Qwen3CoderFamily),
    *(Qwen35Family, Qwen36Family, Qwen38Family, DeepSeekV3Family, DeepSeekR1Family, DeepSeekV31Family),
    *(DeepSeekV4Family, DeepSeekV41Family, KimiK2Family, KimiK25Family),
    *(Glm45Family, Glm46Family, Glm47Family, Glm5Family, Glm53Family, GptOssFamily),
)
_QUIET = FamilyOptions(thinking=False)
_TEMPLATE = FamilyOptions(history=History.TEMPLATE)
_NO_PROMPT = FamilyOptions(effort="none")

VECTORS: dict[str, tuple[type[NativeFamily], FamilyOptions]] = {
    "qwen3": (Qwen3Family, _TEMPLATE),
    "qwen3[keep]": (Qwen3Family, FamilyOptions()),
    "qwen3[strip_thinking_from_history=False]": (Qwen3Family, FamilyOptions()),
    "qwen3_disable_thinking": (Qwen3Family, _QUIET),
    "qwen3_instruct": (Qwen3InstructFamily, FamilyOptions()),
    "qwen3_5": (Qwen35Family, FamilyOptions()),
    "qwen3_5_disable_thinking": (Qwen35Family, _QUIET),
    "qwen3_8_xhigh_reasoning": (Qwen38Family, FamilyOptions()),
    "qwen3_8_disable_thinking": (Qwen38Family, _QUIET),
    "deepseekv3": (DeepSeekV31Family, _QUIET),
    "deepseekv3_thinking": (DeepSeekV31Family, FamilyOptions()),
    "deepseekv4_1": (DeepSeekV41Family, FamilyOptions()),
    "deepseekv4_1_disable_thinking": (DeepSeekV41Family, _QUIET),
    "glm5_3_max_reasoning": (Glm53Family, FamilyOptions()),
    "kimi_k2": (KimiK2Family, FamilyOptions()),
    "kimi_k25": (KimiK25Family, FamilyOptions()),
    "kimi_k25_disable_thinking": (KimiK25Family, _QUIET),
    "gpt_oss_no_sysprompt": (GptOssFamily, _NO_PROMPT),
}


@cache
def of_vectors(name: str) -> NativeFamily:
    """Return the family of a recorded renderer, over single bytes."""
    family, options = VECTORS[name]
    return _made(family, options, byte_vocabulary)


@cache
def over_bytes(family: type[NativeFamily], options: FamilyOptions | None = None) -> NativeFamily:
    """Return a family over single bytes."""
    return _made(family, options or FamilyOptions(), byte_vocabulary)


@cache
def over_real_vocabulary(family: type[NativeFamily], options: FamilyOptions | None = None) -> NativeFamily:
    """Return a family over a real vocabulary."""
    return _made(family, options or FamilyOptions(), real_vocabulary)


def encoded(family: NativeFamily, text: str) -> list[int]:
    """Return ids of a text in which control tokens stand literally: what a model samples."""
    return byte_vocabulary(family.family).encode(text, add_special_tokens=False).ids


def only_id(family: NativeFamily, token: str) -> int:
    """Return the id of a control token in the real vocabulary."""
    number = real_vocabulary(family.family).token_to_id(token)
    assert number is not None, token
    return number


def _made(family: type[NativeFamily], options: FamilyOptions, vocabulary: Callable[[str], Tokenizer]) -> NativeFamily:
    return family(vocabulary(family.family), options)
