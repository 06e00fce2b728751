"""Mooncake's traces: arrivals, lengths, and which prompts begin alike, as ids of blocks of 512 tokens.

Source: https://github.com/kvcache-ai/Mooncake, `FAST25-release/traces/*.jsonl`, Apache-2.0; Qin et al., "Mooncake",
FAST 2025.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import msgspec

from octavo.sim.request import TimedRequest
from octavo.traces.files import MAX_TOKENS, bad, in_order, lines

BLOCK_TOKENS = 512
"""Tokens that one id of `hash_ids` stands for."""


class MooncakeRecord(msgspec.Struct, frozen=True):
    """One recorded request."""

    timestamp: int
    """Milliseconds from the start of the trace."""
    input_length: int
    output_length: int
    hash_ids: list[int]
    """One for each block of 512 prompt tokens, the last block perhaps partly filled. Equal ids are equal blocks with
    equal tokens before them."""


def read_mooncake(path: Path, tell: Callable[[str], None] = lambda note: None) -> list[MooncakeRecord]:
    """Read a Mooncake trace, plain or gzip, in order of time.

    Args:
        tell: Told if the file itself is not in that order.

    Raises:
        ConfigError: If the file cannot be read or a line is not such a record; the message names file, line, value.
    """
    numbered = [(number, _record(path, number, line)) for number, line in lines(path)]
    return in_order(path, numbered, lambda record: record.timestamp, tell)


def mooncake_requests(records: Sequence[MooncakeRecord], arrivals: Sequence[float], rng: Random) -> list[TimedRequest]:
    """One request for each arrival, in the order of the trace; when the trace is through it begins again with blocks
    of its own.

    A prompt's tokens are made from its ids, one token repeated over a block: prompts share exactly the blocks that the
    trace says they share, whatever the size of the engine's blocks. What two prompts share beyond their last common
    block of 512 is not in the trace, nor are answers: a simulated answer is a hit for no later prompt.
    """
    tokens: dict[int, int] = {}
    for record in records:
        for block in record.hash_ids:
            tokens.setdefault(block, len(tokens))
    requests = []
    for number, arrival_s in enumerate(arrivals):
        lap, place = divmod(number, len(records))
        record = records[place]
        ids = [lap * len(tokens) + tokens[block] + 1 for block in record.hash_ids]
        requests.append(
            TimedRequest(
                arrival_s=arrival_s,
                token_ids=_prompt(ids, record.input_length),
                num_output_tokens=record.output_length,
                seed=rng.randrange(1 << 31),
            )
        )
    return requests


def _prompt(ids: list[int], num_tokens: int) -> list[int]:
    tokens = [token for token in ids for _ in range(BLOCK_TOKENS)]
    del tokens[num_tokens:]
    return tokens


def _record(path: Path, line: int, text: str) -> MooncakeRecord:
    try:
        record = msgspec.json.decode(text, type=MooncakeRecord)
    except msgspec.DecodeError as error:
        raise bad(path, line, "record", text, f"a JSON object of a Mooncake trace ({error})") from None
    for field, value, least in (
        ("timestamp", record.timestamp, 0),
        ("input_length", record.input_length, 1),
        ("output_length", record.output_length, 1),
    ):
        if not least <= value <= MAX_TOKENS:
            raise bad(path, line, field, value, f"an integer from {least} to {MAX_TOKENS}")
    num_blocks = -(-record.input_length // BLOCK_TOKENS)
    if len(record.hash_ids) != num_blocks:
        allowed = f"{num_blocks} ids, one for each {BLOCK_TOKENS} of {record.input_length} tokens"
        raise bad(path, line, "hash_ids", record.hash_ids, allowed)
    return record
