"""Sampling flags of `chat` and `generate`, one for each field of SamplingParams that makes sense there."""

from __future__ import annotations

import argparse
import json
from typing import Any

from octavo.cli.parser import integer

_FLAGS: dict[str, tuple[Any, str, str]] = {
    # field: (type, metavar, help)
    "max_tokens": (integer, "N", "tokens to generate at most"),
    "min_tokens": (integer, "N", "no end before this many tokens"),
    "temperature": (float, "X", "0 takes the likeliest token"),
    "top_p": (float, "X", "keep the likeliest tokens up to this probability mass"),
    "top_k": (integer, "N", "keep the k likeliest tokens; 0 keeps all"),
    "min_p": (float, "X", "drop tokens less likely than this times the likeliest"),
    "repetition_penalty": (float, "X", "above 1 makes tokens of prompt and answer less likely"),
    "presence_penalty": (float, "X", "taken from tokens that are in the answer already"),
    "frequency_penalty": (float, "X", "taken from tokens once for each time they are in the answer"),
    "seed": (integer, "N", "fixes the noise, so that the answer can be had again"),
    "stop": (str, "TEXT", "end before this text (repeat for several)"),
    "stop_token_ids": (integer, "N", "end after this token id (repeat for several)"),
}
_BATCH = (
    ("n", integer, "N", "answers per prompt (default: 1)"),
    ("best_of", integer, "N", "answers to draw; the n likeliest are printed (default: n)"),
    ("beam_width", integer, "N", "search with so many beams instead of sampling; the n best are printed"),
    ("length_penalty", float, "X", "exponent of a beam's length in its score (default: 1.0)"),
)
"""Flags of commands that show more than one answer."""

_LISTS = ("stop", "stop_token_ids")


def add_sampling_flags(parser: argparse.ArgumentParser, defaults: dict[str, Any], *, batch: bool = False) -> None:
    """Add the flags. `defaults` are values where the command's differ from those of SamplingParams."""
    from octavo.messages import SamplingParams

    group = parser.add_argument_group("Sampling")
    standard = SamplingParams()
    for name, (kind, metavar, text) in _FLAGS.items():
        default = defaults.get(name, getattr(standard, name))
        shown = "" if default in (None, ()) else f" (default: {default})"
        action = "append" if name in _LISTS else "store"
        flag = "--" + name.replace("_", "-")
        group.add_argument(
            flag, dest=f"sampling.{name}", type=kind, action=action, metavar=metavar, default=None, help=text + shown
        )
    if batch:
        for name, kind, metavar, text in _BATCH:
            flag = "--" + name.replace("_", "-")
            group.add_argument(flag, dest=f"sampling.{name}", type=kind, metavar=metavar, help=text)
        group.add_argument("--ignore-eos", dest="sampling.ignore_eos", action="store_true", default=None,
                           help="go on after the model's end-of-sequence token")  # fmt: skip
        group.add_argument("--logit-bias", dest="sampling.logit_bias", type=_logit_bias, metavar="JSON",
                           help='added to logits, such as \'{"198": -100}\'')  # fmt: skip


def _logit_bias(text: str) -> dict[int, float]:
    try:
        return {int(token): float(bias) for token, bias in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError):
        raise argparse.ArgumentTypeError(f"{text!r} must be a JSON object from token ids to numbers") from None


def sampling_fields(args: argparse.Namespace, defaults: dict[str, Any]) -> dict[str, Any]:
    """The fields that were given, over the command's defaults; names as in SamplingParams and the HTTP API."""
    given = {key.removeprefix("sampling."): value for key, value in vars(args).items() if key.startswith("sampling.")}
    return defaults | {key: value for key, value in given.items() if value is not None}
