"""The report of `octavo inspect` for people: a panel of tables in a terminal, plain columns in a pipe."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from octavo.cli.text import count, size

Row = tuple[str, str]


def print_report(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    for title, rows in sections(report):
        if not console.is_terminal:
            print(title)
            for label, text in rows:
                print(f"  {label:<20}{text}")
            continue
        table = Table(title=title, title_style="bold cyan", title_justify="left", show_header=False, box=None)
        table.add_column(style="dim", width=20)
        table.add_column(overflow="fold")
        for label, text in rows:
            table.add_row(label, text)
        console.print(table)


def sections(report: dict[str, Any]) -> list[tuple[str, list[Row]]]:
    """Headings and rows of text."""
    model = report["model"]
    found = [
        (f"{model['name']}: {model['family']}", _model(model)),
        ("Layers", _layers(report["layers"])),
        ("Unusual", [(_words(name), _value(value)) for name, value in report["unusual"].items()]),
        ("Weights", _weights(report["weights"])),
        ("Tokenizer", _tokenizer(report["tokenizer"]) if "tokenizer" in report else []),
        ("Chat", _chat(report["chat"]) if "chat" in report else []),
        ("Memory", _memory(report["memory"])),
    ]
    return [(title, rows) for title, rows in found if rows]


def _model(model: dict[str, Any]) -> list[Row]:
    tied = "; the output uses the embedding" if model["tied_embeddings"] else ""
    return [
        ("format", model["format"]),
        ("context", f"{model['context']:,} tokens"),
        ("vocabulary", f"{model['vocabulary']:,} tokens{tied}"),
        ("width", f"{model['width']:,}, MLP {model['mlp_width']:,}"),
    ]


def _layers(layers: dict[str, Any]) -> list[Row]:
    sharing = layers["query_heads"] // max(1, layers["kv_heads"])
    shared = "" if sharing == 1 else f", {sharing} queries to each"
    rows = [
        ("layers", str(layers["count"])),
        ("heads", f"{layers['query_heads']} query, {layers['kv_heads']} KV{shared}; {layers['head_width']} wide"),
    ]
    for kind in layers["windows"]:
        sees = "all tokens" if kind["window"] is None else f"the last {kind['window']:,} tokens"
        rows.append(("attention", f"{count(kind['layers'], 'layer')} over {sees}"))
    if len(layers["kinds"]) > 1 or _odd(layers["kinds"][0]):
        for kind in layers["kinds"]:
            rest = {
                name: value for name, value in kind.items() if name not in ("layers", "window") and value is not None
            }
            rows.append(("kind of layer", f"{count(kind['layers'], 'layer')}: {_pairs(rest.items())}"))
    theta = layers["rope"]["theta"]
    rows.append(("rope", layers["rope"]["kind"] + ("" if theta is None else f", theta {theta:,.0f}")))
    return rows


def _odd(kind: dict[str, Any]) -> bool:
    return kind["rotated"] != "all" or any(
        value is not None for name, value in kind.items() if name not in ("layers", "window", "rotated")
    )


def _weights(weights: dict[str, Any]) -> list[Row]:
    rows = [("parameters", f"{_amount(weights['parameters'])} in matrices")]
    for kind in weights.get("stored", []):
        amount = f"{_amount(kind['elements'])} elements"
        rows.append(("stored as", f"{kind['format']}: {amount} in {count(kind['tensors'], 'tensor')}"))
    rows.append(("kept as", weights["kept"]))
    return rows + [("not used", text) for text in weights.get("unused", [])]


def _tokenizer(tokenizer: dict[str, Any]) -> list[Row]:
    if tokenizer["kind"] is None:
        return [("none", tokenizer["why"])]
    around = " ".join(tokenizer["put_around_a_text"])
    return [
        ("kind", tokenizer["kind"]),
        ("tokens", f"{tokenizer['tokens']:,}, {tokenizer['control_tokens']:,} of them control tokens"),
        ("put around a text", around or "nothing"),
        ("ends an answer", " ".join(tokenizer["ends_an_answer"]) or "nothing"),
    ]


def _chat(chat: dict[str, Any]) -> list[Row]:
    if chat["template"] is None:
        return [("no template", chat["why"])]
    parser = chat["tool_call_parser"]
    thinking = chat["reasoning_parser"]
    switch = f", switched by {chat['thinking_switch']}" if chat["thinking_switch"] else ""
    return [
        ("template", f"{chat['template']}, {chat['characters']:,} characters"),
        ("system message", "yes" if chat["takes_system"] else "refused by the template"),
        ("tools", f"{chat['tools']}; calls are read by {parser or 'no parser that Octavo has'}"),
        ("thinking", "no" if thinking is None else f"yes, read by {thinking}{switch}"),
    ]


def _memory(memory: dict[str, Any]) -> list[Row]:
    context = memory["served_context"]
    rows = [
        ("weights", size(memory["weights_bytes"])),
        ("KV of a token", f"{size(memory['kv_bytes_per_token'])} in {memory['kv_dtype']}"),
        ("KV of one context", f"{size(memory['kv_bytes_of_one_full_context'])} for {context:,} tokens"),
        ("together", size(memory["weights_bytes"] + memory["kv_bytes_of_one_full_context"])),
    ]
    if len(memory["kv_groups"]) > 1:
        groups = [f"{group['layers']} x {group['window'] or 'all'}" for group in memory["kv_groups"]]
        rows.append(("KV groups", f"{', '.join(groups)} (layers x tokens kept)"))
    here = memory.get("here")
    if here is not None and here["fits"]:
        rows.append(("served here", f"{here['served_context']:,} tokens of context; KV memory: {here['kv_reason']}"))
    elif here is not None:
        rows.append(("does not fit here", here["why"]))
    return rows


def _amount(number: int) -> str:
    """For people: `134.5 million`."""
    for unit, word in ((10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if number >= unit:
            return f"{number / unit:,.1f} {word}"
    return str(number)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return _pairs(value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _pairs(items: Iterable[tuple[str, Any]]) -> str:
    return ", ".join(f"{_words(name)} {_value(value)}" for name, value in items)
