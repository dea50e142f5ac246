"""A model's own files tell its native format; a wrong pairing is an error that names both."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from adapters.families.model_files import ModelFiles
from adapters.families.registry import SPECS, ability, chosen, family_of_files, fitting
from domain.errors import ConfigurationError
from resources.wiring import ability_of_base, family_of_base
from tests.fakes.models import tiny_policy
from tests.fakes.native_tokenizers import byte_vocabulary

_XML = "<tool_call>\\n<function=' + name"
_START = "<|im_start|>assistant\\n"

MODELS: Mapping[str, tuple[str, str | None]] = {
    "qwen2.5": ("qwen2", "You are Qwen, created by Alibaba Cloud."),
    "qwen3": ("qwen3_moe", f"enable_thinking {_START}<think>\\n\\n</think>"),
    "qwen3-instruct-2507": ("qwen3_moe", f"{_START}"),
    "qwen3-thinking-2507": ("qwen3_moe", f"{_START}<think>\\n"),
    "qwen3-coder": ("qwen3_moe", f"<parameters> {_XML} {_START}"),
    "qwen3.5": ("qwen3_5_moe", f"enable_thinking {_XML} {_START}<think>\\n"),
    "qwen3.6": ("qwen3_5_moe", f"enable_thinking preserve_thinking {_XML} {_START}<think>\\n"),
    "qwen3.8": ("qwen3_5_moe", f"enable_thinking preserve_thinking {_XML} Reasoning effort is set to"),
    "deepseek-v3": ("deepseek_v3", "<｜User｜>"),
    "deepseek-r1": ("deepseek_v3", "<｜Assistant｜><think>\\n"),
    "deepseek-v3.1": ("deepseek_v3", "thinking is defined <think>"),
    "deepseek-v4": ("deepseek_v4", None),
    "deepseek-v4.1": ("deepseek_v4", None),
    "kimi-k2": ("kimi_k2", "tool_declare"),
    "kimi-k2.5": ("kimi_k25", "tool_declare"),
    "glm-4.7": ("glm4_moe", "clear_thinking"),
    "glm-5": ("glm_moe_dsa", "clear_thinking"),
    "glm-5.3": ("glm_moe_dsa", "clear_thinking Reasoning Effort: "),
    "gpt-oss": ("gpt_oss", "render_typescript_type"),
}
"""``model_type`` and the telling words of the chat template of models whose files tell their family alone."""


@cache
def _files(family: str) -> ModelFiles:
    model_type, template = MODELS[family]
    tokenizer = byte_vocabulary(family).to_str().encode()
    contents = {"tokenizer.json": tokenizer, "config.json": json.dumps({"model_type": model_type}).encode()}
    if template is not None:
        contents["tokenizer_config.json"] = json.dumps({"chat_template": template}).encode()
    return ModelFiles.read(contents.get)


@pytest.mark.parametrize("family", MODELS)
def test_files_tell_the_family(family: str) -> None:
    """Undeclared, the files alone choose; declared, they agree; the format is made over their tokenizer."""
    files = _files(family)
    assert fitting(files) == (family,)
    assert chosen(None, files, model="m") == chosen(family, files, model="m") == SPECS[family]
    assert family_of_files(family, files, model="m").name == family


@pytest.mark.parametrize("declared", SPECS)
@pytest.mark.parametrize("family", MODELS)
def test_a_wrong_pairing_names_both(family: str, declared: str) -> None:
    """Any other declared family is refused, with the declared one, the fitting one and what speaks against it."""
    if declared == family:
        return
    with pytest.raises(ConfigurationError) as caught:
        chosen(declared, _files(family), model="m")
    assert f"declared family {declared!r}, but its files are of {family}:" in str(caught.value)


def test_what_the_files_leave_open_must_be_declared() -> None:
    """Without a template Qwen3 could be any of its kinds; GLM-4.5 and 4.6 have the same files."""
    files = replace(_files("qwen3"), template=None)
    with pytest.raises(ConfigurationError, match="its files fit qwen3, qwen3-instruct-2507"):
        chosen(None, files, model="m")
    assert chosen("qwen3", files, model="m").name == "qwen3"
    glm = replace(_files("glm-4.7"), template="nothink")
    assert fitting(glm) == ("glm-4.5", "glm-4.6")
    assert chosen("glm-4.6", glm, model="m").name == "glm-4.6"


def test_an_unknown_family_and_unknown_files_are_told() -> None:
    """A name that is none, a model of no family, files that are no JSON."""
    with pytest.raises(ConfigurationError, match="no family 'qwen33'"):
        chosen("qwen33", _files("qwen3"), model="m")
    with pytest.raises(ConfigurationError, match="fit no known family"):
        chosen(None, replace(_files("qwen3"), model_type="llama"), model="m")
    with pytest.raises(ConfigurationError, match=r"config\.json is no JSON"):
        ModelFiles.read({"config.json": b"{"}.get)


def test_sampling_and_training_are_told_apart() -> None:
    """A mixture of experts can be sampled and not trained; a wrong pairing neither; quantized weights not trained."""
    dense = replace(_files("qwen3"), model_type="qwen3")
    assert (ability("qwen3", dense, model="m").can_infer, ability("qwen3", dense, model="m").can_train) == (True, True)
    experts = ability("gpt-oss", _files("gpt-oss"), model="m")
    assert (experts.can_infer, experts.can_train) == (True, False)
    assert "not of gpt_oss" in experts.no_training[0]
    wrong = ability("gpt-oss", _files("qwen3"), model="m")
    assert (wrong.can_infer, wrong.can_train) == (False, False)
    assert "its files are of qwen3" in wrong.no_inference[0]
    quantized = ability("qwen3", replace(dense, quantized=True), model="m")
    assert (quantized.can_infer, quantized.no_training) == (True, ("its weights are quantized",))
    bare = ability("qwen3", replace(dense, tokenizer_json=None), model="m")
    assert bare.no_inference == ("it has no tokenizer.json",)


def test_a_base_policy_is_checked_against_its_files() -> None:
    """The tiny policy is a Qwen3; declared as another family it is refused."""
    tiny = tiny_policy()
    assert family_of_base(tiny.base, tiny.store).name == "qwen3"
    assert ability_of_base(tiny.base, tiny.store).can_train
    with pytest.raises(ConfigurationError, match=r"declared family 'qwen2\.5', but its files are of"):
        family_of_base(replace(tiny.base, family="qwen2.5"), tiny.store)


def test_a_model_directory_is_read(tmp_path: Path) -> None:
    """A template file of its own counts before the one in tokenizer_config.json; several templates count together."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    settings = {"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert ModelFiles.of_directory(tmp_path).template == "a\nb"
    (tmp_path / "chat_template.jinja").write_text("enable_thinking")
    files = ModelFiles.of_directory(tmp_path)
    assert (files.template, files.model_type, files.tokens) == ("enable_thinking", "qwen3", None)
