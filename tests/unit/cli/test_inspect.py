"""`octavo inspect` says what a checkpoint holds and needs, and names what Octavo lacks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fuzz import checkpoints
from octavo.cli.inspect_report import sections
from octavo.cli.main import main
from octavo.measure.model_facts import unusual
from octavo.models.families import FAMILIES, decoder_spec
from octavo.models.nearest import nearest
from octavo.weights.gguf_architectures import ARCHITECTURES
from octavo.weights.huggingface import HFCheckpoint
from octavo.weights.safetensors import SafeTensorsFile
from support.paths import TINYSTORIES
from support.tiny_models import TinyLlama, write_tiny_llama


def report(model: Path | str, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main(["inspect", str(model), "--json", *flags]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refusal(model: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["inspect", str(model)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    return err


def write_config(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**TinyLlama().config(), **changes}))
    return path


def test_all_sections_of_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(TINYSTORIES, capsys, "--dtype", "float32")
    assert (found["model"]["family"], found["model"]["context"]) == ("LlamaForCausalLM", 256)
    assert found["layers"]["windows"] == [{"layers": 5, "window": None}]
    assert found["layers"]["rope"] == {"kind": "default", "theta": 10000.0}
    assert [(kind["format"], kind["tensors"]) for kind in found["weights"]["stored"]] == [("f32", 47)]
    assert found["tokenizer"]["ends_an_answer"] == ["</s> (2)"]
    assert found["tokenizer"]["put_around_a_text"] == ["<s> (1)"]
    assert found["chat"]["template"] is None and "base model" in found["chat"]["why"]
    # Keys and values of 4 heads of 8 elements in 5 layers, 4 bytes each.
    assert found["memory"]["kv_bytes_per_token"] == 2 * 4 * 8 * 5 * 4
    assert found["memory"]["served_context"] == 256 and found["memory"]["here"]["fits"]


def test_no_tensor_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(HFCheckpoint, "read", read)
    report(TINYSTORIES, capsys)
    monkeypatch.setattr(SafeTensorsFile, "tensor", read)
    with pytest.raises(AssertionError):
        report(TINYSTORIES, capsys, "--debug")


def test_a_window_makes_a_context_cheaper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--max-num-batched-tokens", "32", "--block-size", "16")
    full = report(write_config(tmp_path, max_position_embeddings=4096), capsys, *flags)["memory"]
    config = write_config(
        tmp_path, max_position_embeddings=4096, architectures=["MistralForCausalLM"], sliding_window=64
    )
    found = report(config, capsys, *flags)
    assert found["layers"]["windows"] == found["memory"]["kv_groups"] == [{"layers": 2, "window": 64}]
    assert found["memory"]["kv_bytes_per_token"] == full["kv_bytes_per_token"]
    assert found["memory"]["kv_bytes_of_one_full_context"] < full["kv_bytes_of_one_full_context"] / 10


def test_a_config_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for model in (write_config(tmp_path), tmp_path):
        found = report(model, capsys, "--dtype", "float32")
        assert found["model"]["format"] == "config.json alone"
        assert found["memory"]["weights_bytes"] == 4 * found["weights"]["parameters"]
        assert "tokenizer" not in found and "here" not in found["memory"]


def test_overrides_count_and_those_that_do_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_config(tmp_path)
    assert report(path, capsys, "--hf-overrides", '{"num_hidden_layers": 1}')["layers"]["count"] == 1
    for model in (TINYSTORIES, path):
        assert main(["inspect", str(model), "--hf-overrides", '{"rope_thta": 1}']) == 2
        assert "hf_overrides.rope_thta = 1: must be left out" in capsys.readouterr().err


def test_a_tensor_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without reading it."""
    folder = write_tiny_llama(tmp_path / "m", TinyLlama())
    header, data = checkpoints.split((folder / "model.safetensors").read_bytes())
    header["model.norm.weight"]["dtype"] = "U32"
    (folder / "model.safetensors").write_bytes(checkpoints.with_header(header, data))
    assert "tensor 'model.norm.weight' is U32; readable are BF16" in refusal(folder, capsys)


def test_a_chat_template_is_looked_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny_llama(tmp_path / "m", TinyLlama(vocab_size=512))
    (folder / "tokenizer.json").write_bytes((TINYSTORIES / "tokenizer.json").read_bytes())
    (folder / "chat_template.jinja").write_text(
        "{% if tools %}<tool_call>{% endif %}{% if enable_thinking %}<think></think>{% endif %}{{ messages }}"
    )
    chat = report(folder, capsys)["chat"]
    assert (chat["tools"], chat["tool_call_parser"]) == ("in the template", "hermes")
    assert (chat["reasoning_parser"], chat["thinking_switch"], chat["takes_system"]) == (
        "qwen3",
        "enable_thinking",
        True,
    )
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no') if messages[0].role == 'system' else 'x' }}")
    assert report(folder, capsys)["chat"]["takes_system"] is False


def test_what_is_unusual_follows_the_spec() -> None:
    plain = decoder_spec(TinyLlama().config())
    assert set(unusual(plain)) <= {"tied_embeddings"}
    odd = unusual(decoder_spec({**TinyLlama().config(), "attention_bias": True}))
    assert odd == {"qkv_bias": True, "output_bias": True}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"architectures": ["LlamaModelForCausalLM"]},
            "nearest supported one is 'LlamaForCausalLM'",
        ),
        ({"architectures": ["MistralLargeForCausalLM"]}, "nearest supported one is 'MistralForCausalLM'"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "'spiral'"),
        ({"hidden_act": "sine"}, "'sine'"),
    ],
)
def test_what_is_lacked_is_named_in_one_line(
    changes: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(says, refusal(write_config(tmp_path, **changes), capsys))


def test_nearest_knows_its_own_names_and_no_strangers() -> None:
    alone = [name for name in FAMILIES if name != "Gemma3ForConditionalGeneration"]
    assert all(nearest(name, FAMILIES) == name for name in alone)
    assert nearest("xyzzy", FAMILIES) is nearest("BertForMaskedLM", FAMILIES) is None
    assert nearest("YiForCausalLM", FAMILIES) == "LlamaForCausalLM"
    assert nearest("yi", ARCHITECTURES) == "llama"


def test_the_text_shows_every_section(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(TINYSTORIES, capsys)
    assert main(["inspect", str(TINYSTORIES)]) == 0
    out = capsys.readouterr().out
    for title, rows in sections(found):
        assert title in out
        for label, _ in rows:
            assert label in out
    assert "\x1b" not in out
