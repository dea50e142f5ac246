"""Which native format a model speaks, told by its own files; a wrong pairing is an error, never a guess.

Source: ``config.json``, ``tokenizer.json`` and chat templates of the families; facts/proxy.md section 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from tokenizers import Tokenizer

from adapters.families.model_files import ModelFiles
from adapters.families.native_family import NativeFamily
from domain.errors import ConfigurationError
from domain.ports import Store
from domain.records.family import FamilyAbility, FamilyOptions
from domain.records.model import BasePolicy
from domain.records.wording import one_of

TRAINABLE = ("qwen2", "qwen3")
"""Model types all of whose attention and MLP projections are plain matrices that LoRA adapts."""

_QWEN = ("<|im_start|>", "<|im_end|>", "<tool_call>")
_DEEPSEEK = ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")
_KIMI = ("<|im_middle|>", "<|tool_calls_section_begin|>")
_GLM = ("[gMASK]", "<|observation|>", "<arg_key>")


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySpec:
    """How a family is known. A file that a model does not have says nothing for or against."""

    name: str
    made_by: str
    """``module:class`` below this package."""
    model_types: tuple[str, ...]
    """``model_type`` of ``config.json``."""
    tokens: tuple[str, ...]
    """In the vocabulary, all of them."""
    no_tokens: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    """In the chat template, all of them."""
    never_says: tuple[str, ...] = ()

    def objections(self, files: ModelFiles) -> tuple[str, ...]:
        """Return what in a model's files speaks against this family; empty: it fits."""
        found: list[str] = []
        if files.model_type is not None and files.model_type not in self.model_types:
            found.append(f"model_type {files.model_type!r} of config.json is not {' or '.join(self.model_types)}")
        if files.tokens is not None:
            found += [f"tokenizer.json has no token {token!r}" for token in self.tokens if token not in files.tokens]
            found += [f"tokenizer.json has the token {token!r}" for token in self.no_tokens if token in files.tokens]
        if files.template is not None:
            found += [f"the chat template has no {text!r}" for text in self.says if text not in files.template]
            found += [f"the chat template has {text!r}" for text in self.never_says if text in files.template]
        return tuple(found)

    def load(self) -> type[NativeFamily]:
        """Return the class."""
        module, _, name = self.made_by.partition(":")
        return cast("type[NativeFamily]", getattr(import_module(f"adapters.families.{module}"), name))


_QWEN3_TYPES = ("qwen3", "qwen3_moe", "qwen3_next")
_QWEN35_TYPES = ("qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text")
_GLM5_TYPES = ("glm_moe_dsa",)

SPECS: dict[str, FamilySpec] = {
    spec.name: spec
    for spec in (
        FamilySpec(
            name="qwen2.5",
            made_by="qwen3:Qwen25Family",
            model_types=("qwen2", "qwen2_moe"),
            tokens=_QWEN,
            no_tokens=("<tool_response>", "<think>"),
            never_says=("<think>", "<function="),
        ),
        FamilySpec(
            name="qwen3",
            made_by="qwen3:Qwen3Family",
            model_types=_QWEN3_TYPES,
            tokens=(*_QWEN, "<tool_response>", "<think>"),
            says=("enable_thinking",),
            never_says=("<function=",),
        ),
        FamilySpec(
            name="qwen3-instruct-2507",
            made_by="qwen3:Qwen3InstructFamily",
            model_types=_QWEN3_TYPES,
            tokens=(*_QWEN, "<tool_response>"),
            never_says=("enable_thinking", "<function=", "<|im_start|>assistant\\n<think>"),
        ),
        FamilySpec(
            name="qwen3-thinking-2507",
            made_by="qwen3:Qwen3ThinkingFamily",
            model_types=_QWEN3_TYPES,
            tokens=(*_QWEN, "<tool_response>", "<think>"),
            says=("<|im_start|>assistant\\n<think>",),
            never_says=("enable_thinking", "<function="),
        ),
        FamilySpec(
            name="qwen3-coder",
            made_by="qwen3_xml:Qwen3CoderFamily",
            model_types=_QWEN3_TYPES,
            tokens=_QWEN,
            says=("<function=", "<parameters>"),
            never_says=("enable_thinking",),
        ),
        FamilySpec(
            name="qwen3.5",
            made_by="qwen3_xml:Qwen35Family",
            model_types=_QWEN35_TYPES,
            tokens=(*_QWEN, "<tool_response>", "<think>"),
            says=("<function=", "enable_thinking"),
            never_says=("preserve_thinking",),
        ),
        FamilySpec(
            name="qwen3.6",
            made_by="qwen3_xml:Qwen36Family",
            model_types=_QWEN35_TYPES,
            tokens=(*_QWEN, "<tool_response>", "<think>"),
            says=("<function=", "preserve_thinking"),
            never_says=("Reasoning effort is set",),
        ),
        FamilySpec(
            name="qwen3.8",
            made_by="qwen3_xml:Qwen38Family",
            model_types=_QWEN35_TYPES,
            tokens=(*_QWEN, "<tool_response>", "<think>"),
            says=("<function=", "preserve_thinking", "Reasoning effort is set"),
        ),
        FamilySpec(
            name="deepseek-v3",
            made_by="deepseek_v3:DeepSeekV3Family",
            model_types=("deepseek_v3",),
            tokens=(*_DEEPSEEK, "<｜tool▁sep｜>"),
            never_says=("<think>",),
        ),
        FamilySpec(
            name="deepseek-r1",
            made_by="deepseek_v3:DeepSeekR1Family",
            model_types=("deepseek_v3",),
            tokens=(*_DEEPSEEK, "<｜tool▁sep｜>"),
            says=("<think>\\n",),
            never_says=("thinking is defined",),
        ),
        FamilySpec(
            name="deepseek-v3.1",
            made_by="deepseek_v3:DeepSeekV31Family",
            model_types=("deepseek_v3",),
            tokens=(*_DEEPSEEK, "<｜tool▁sep｜>", "<think>"),
            no_tokens=("｜DSML｜",),
            says=("thinking is defined",),
        ),
        FamilySpec(
            name="deepseek-v4",
            made_by="deepseek_v4:DeepSeekV4Family",
            model_types=("deepseek_v4",),
            tokens=(*_DEEPSEEK, "｜DSML｜"),
            no_tokens=("<｜System｜>",),
        ),
        FamilySpec(
            name="deepseek-v4.1",
            made_by="deepseek_v4:DeepSeekV41Family",
            model_types=("deepseek_v4",),
            tokens=(*_DEEPSEEK, "｜DSML｜", "<｜System｜>"),
        ),
        FamilySpec(
            name="kimi-k2",
            made_by="kimi:KimiK2Family",
            model_types=("kimi_k2", "deepseek_v3"),
            tokens=_KIMI,
            never_says=("namespace functions", "tools_ts_str"),
        ),
        FamilySpec(
            name="kimi-k2.5",
            made_by="kimi:KimiK25Family",
            model_types=("kimi_k25",),
            tokens=(*_KIMI, "<think>"),
        ),
        FamilySpec(
            name="glm-4.5",
            made_by="glm:Glm45Family",
            model_types=("glm4_moe",),
            tokens=_GLM,
            never_says=("clear_thinking",),
        ),
        FamilySpec(
            name="glm-4.6",
            made_by="glm:Glm46Family",
            model_types=("glm4_moe",),
            tokens=_GLM,
            never_says=("clear_thinking",),
        ),
        FamilySpec(
            name="glm-4.7",
            made_by="glm:Glm47Family",
            model_types=("glm4_moe",),
            tokens=_GLM,
            says=("clear_thinking",),
            never_says=("Reasoning Effort",),
        ),
        FamilySpec(
            name="glm-5",
            made_by="glm:Glm5Family",
            model_types=_GLM5_TYPES,
            tokens=_GLM,
            says=("clear_thinking",),
            never_says=("Reasoning Effort",),
        ),
        FamilySpec(
            name="glm-5.3",
            made_by="glm:Glm53Family",
            model_types=_GLM5_TYPES,
            tokens=_GLM,
            says=("Reasoning Effort",),
        ),
        FamilySpec(
            name="gpt-oss",
            made_by="gpt_oss:GptOssFamily",
            model_types=("gpt_oss",),
            tokens=("<|start|>", "<|channel|>", "<|message|>", "<|call|>"),
        ),
    )
}


def fitting(files: ModelFiles) -> tuple[str, ...]:
    """Return the families that nothing in a model's files speaks against."""
    return tuple(name for name, spec in SPECS.items() if not spec.objections(files))


def chosen(declared: str | None, files: ModelFiles, *, model: str) -> FamilySpec:
    """Return the family of a model.

    Args:
        declared: what its publisher says; None: the files must tell it alone.
        files: its own files.
        model: its name, for messages.

    Raises:
        ConfigurationError: no such family; the files are of another one; undeclared and not told by the files.
    """
    found = fitting(files)
    if declared is None:
        if len(found) == 1:
            return SPECS[found[0]]
        told = f"fit {', '.join(found)}" if found else "fit no known family"
        raise ConfigurationError(f"model {model!r}: its files {told}", hint="declare its family")
    if declared not in SPECS:
        raise ConfigurationError(f"model {model!r}: family: no family {declared!r}", hint=one_of(declared, SPECS))
    objections = SPECS[declared].objections(files)
    if objections:
        actual = " or ".join(found) or "no known family"
        raise ConfigurationError(
            f"model {model!r}: declared family {declared!r}, but its files are of {actual}: {'; '.join(objections)}",
            hint=f"declare {found[0]!r}" if len(found) == 1 else "declare the family that the model was made with",
        )
    return SPECS[declared]


def ability(declared: str | None, files: ModelFiles, *, model: str) -> FamilyAbility:
    """Return what a model can be used for, with the reason of each refusal. Raises nothing."""
    try:
        spec = chosen(declared, files, model=model)
    except ConfigurationError as error:
        reason = str(error)
        return FamilyAbility(family=declared or "unknown", no_inference=(reason,), no_training=(reason,))
    unserved = () if files.tokenizer_json else ("it has no tokenizer.json",)
    return FamilyAbility(family=spec.name, no_inference=unserved, no_training=(*unserved, *_untrainable(files)))


def family_of_files(
    declared: str | None, files: ModelFiles, *, model: str, options: FamilyOptions | None = None
) -> NativeFamily:
    """Return a model's native format over its tokenizer.

    Raises:
        ConfigurationError: see :func:`chosen`; or it has no tokenizer, or the format has no such option.
    """
    spec = chosen(declared, files, model=model)
    if not files.tokenizer_json:
        raise ConfigurationError(f"model {model!r} has no tokenizer.json", hint="convert its tokenizer first")
    return spec.load()(Tokenizer.from_str(files.tokenizer_json.decode()), options)


def family_of_policy(base: BasePolicy, store: Store, options: FamilyOptions | None = None) -> NativeFamily:
    """Return a base policy's native format. Raises ConfigurationError as :func:`family_of_files`."""
    return family_of_files(base.family, ModelFiles.of_policy(base, store), model=base.name, options=options)


def ability_of_policy(base: BasePolicy, store: Store) -> FamilyAbility:
    """Return what a base policy can be used for."""
    return ability(base.family, ModelFiles.of_policy(base, store), model=base.name)


def _untrainable(files: ModelFiles) -> Sequence[str]:
    reasons: list[str] = []
    if files.model_type is None:
        reasons.append("it has no config.json, so its architecture is not known")
    elif files.model_type not in TRAINABLE:
        reasons.append(f"LoRA adapts every projection of {' and '.join(TRAINABLE)} alone, not of {files.model_type}")
    if files.quantized:
        reasons.append("its weights are quantized")
    return reasons
