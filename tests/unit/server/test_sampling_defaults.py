"""--generation-config and its override: where sampling parameters come from that a request leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.config import HTTPConfig
from octavo.errors import ConfigError, ModelFileError
from octavo.messages import SamplingParams
from octavo.server.context import system_fingerprint
from octavo.server.openai.chat import chat_params
from octavo.server.openai.completions import completion_params
from octavo.server.openai.protocol import parse_chat, parse_completion
from octavo.server.sampling_defaults import NO_DEFAULTS, SamplingDefaults, sampling_defaults
from support.infos import tiny_info

OF_MODEL = {
    "do_sample": True,
    "eos_token_id": [2],
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.8,
    "min_p": None,
    "repetition_penalty": 1.05,
    "max_new_tokens": 2048,
}
SAMPLED = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}


def defaults(of_model: dict[str, Any] = OF_MODEL, **settings: Any) -> SamplingDefaults:
    if isinstance(override := settings.get("override_generation_config"), dict):
        settings["override_generation_config"] = json.dumps(override)
    return sampling_defaults(HTTPConfig(**settings), of_model)


def chat(given: SamplingDefaults, **fields: Any) -> SamplingParams:
    return chat_params(parse_chat({"messages": [{"role": "user", "content": "x"}], **fields}, HTTPConfig())[0], given)


def completion(given: SamplingDefaults, **fields: Any) -> SamplingParams:
    return completion_params(parse_completion({"prompt": "x", **fields}, HTTPConfig())[0], given)


def test_auto_takes_the_models_own_and_vllm_takes_none() -> None:
    assert defaults() == SamplingDefaults(SAMPLED, 2048, caps=False)
    assert defaults(generation_config="vllm") == defaults({}) == NO_DEFAULTS


def test_a_folder_stands_in_for_the_model(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.2, "max_new_tokens": 9}')
    assert defaults(generation_config=str(tmp_path)) == SamplingDefaults({"temperature": 0.2}, 9, caps=True)


def test_the_override_goes_before_any_file() -> None:
    override = {"temperature": 0.1, "top_k": None, "max_new_tokens": 8}
    expected = {"temperature": 0.1, "top_p": 0.8, "repetition_penalty": 1.05}
    assert defaults(override_generation_config=override) == SamplingDefaults(expected, 8, caps=True)
    alone = defaults(generation_config="vllm", override_generation_config={"min_p": 0.1})
    assert alone == SamplingDefaults({"min_p": 0.1})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"override_generation_config": "{"}, "override_generation_config = '{': must be a JSON object"),
        ({"override_generation_config": "[1]"}, "must be a JSON object"),
        ({"override_generation_config": {"top_p": 2}}, "override_generation_config.top_p = 2: must be above 0"),
        (
            {"override_generation_config": {"top_k": True}},
            "override_generation_config.top_k = True: must be an integer",
        ),
        ({"override_generation_config": {"max_new_tokens": 0}}, "max_new_tokens = 0: must be an integer from 1"),
        ({"override_generation_config": {"num_beams": 4}}, "num_beams = 4: must be left out; there is temperature"),
        ({"generation_config": "/nowhere"}, "generation_config = '/nowhere': must be auto, vllm, or a folder"),
    ],
)
def test_mistakes_name_the_setting(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        defaults(**settings)
    assert said in str(error.value)


def test_a_bad_value_in_the_file_is_named_and_may_be_overridden() -> None:
    with pytest.raises(ModelFileError, match=r"generation_config.json.*temperature.*is hot; must be a finite number"):
        defaults({"temperature": "hot"})
    assert defaults({"temperature": "hot"}, override_generation_config={"temperature": 0}).values == {"temperature": 0}
    assert defaults({"temperature": "hot"}, generation_config="vllm") == NO_DEFAULTS


def test_requests_own_values_win() -> None:
    assert chat(defaults()) == SamplingParams(max_tokens=2048, **SAMPLED)
    own = chat(defaults(), temperature=0, top_k=-1, top_p=1, repetition_penalty=1, max_tokens=3000)
    assert own == SamplingParams(max_tokens=3000, temperature=0)
    assert chat(defaults(), temperature=None).temperature == 0.7


def test_the_length_of_answers() -> None:
    of_model, of_operator = defaults(), defaults(override_generation_config={"max_new_tokens": 8})
    assert completion(of_model).max_tokens == 16 and completion(of_operator).max_tokens == 8
    assert completion(of_operator, max_tokens=100).max_tokens == 8
    assert chat(of_operator, max_completion_tokens=5).max_tokens == 5
    assert completion(of_operator, max_tokens=0, echo=True).max_tokens == 0


def test_a_beam_search_takes_none_of_them() -> None:
    beams = completion(defaults(), beam_width=2, n=2)
    assert beams == SamplingParams(beam_width=2, n=2, max_tokens=16)


def test_the_fingerprint_changes_with_them() -> None:
    prints = [system_fingerprint(tiny_info(), given) for given in (NO_DEFAULTS, defaults(), defaults({"top_k": 20}))]
    assert len(set(prints)) == 3 and prints[0] == system_fingerprint(tiny_info())


def test_usage_may_be_forced() -> None:
    http = HTTPConfig(enable_force_include_usage=True)

    def asked(**fields: Any) -> tuple[bool, bool]:
        request, _ = parse_completion({"prompt": "x", **fields}, http)
        return request.include_usage, request.continuous_usage

    assert asked() == (False, False), "what is no stream has it anyway"
    assert asked(stream=True) == (True, False)
    assert asked(stream=True, stream_options={"include_usage": False, "continuous_usage_stats": True}) == (True, True)
