"""What is asked: lengths and arrivals made into requests, as the paper's experiments make them.

Prompts share no prefix with each other unless a workload says so: a prompt's first token is its own, all others are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from random import Random

from octavo.errors import ConfigError
from octavo.sim.executor import TOKEN
from octavo.sim.request import TimedRequest

Conversation = list[tuple[int, int]]
"""(tokens of the query, tokens of the answer) of each round."""

MOST_SEQUENCES = 500_000
"""Answers and beams of all requests of a workload."""

_PREFIX_TOKEN = 1
_FIRST_OWN_TOKEN = 2
"""From here on, tokens that tell prompts apart."""

_SEEDS = 1 << 31


def from_lengths(
    pairs: Sequence[tuple[int, int]],
    arrivals: Sequence[float],
    rng: Random,
    *,
    n: int = 1,
    beam_width: int | None = None,
) -> list[TimedRequest]:
    """One request for each arrival, with lengths drawn as the authors' trace generator draws them: the first pairs of
    the list (from its beginning again if it is short), shuffled.

    Args:
        pairs: (prompt tokens, answer tokens).
        n: Answers to sample for each prompt (section 6.3, parallel sampling).
        beam_width: Beams of each search (section 6.3, beam search); `n` is 1 then.

    Raises:
        ConfigError: If there are no pairs, or more than MOST_SEQUENCES answers or beams in all.
    """
    num_sequences = len(arrivals) * (beam_width or n)
    if num_sequences > MOST_SEQUENCES:
        allowed = (
            f"at most {MOST_SEQUENCES} in a run: lower {'beam_width' if beam_width else 'n'}, the rate or the duration"
        )
        raise ConfigError("sequences", num_sequences, allowed)
    lengths = _first(pairs, len(arrivals))
    rng.shuffle(lengths)
    return [
        _request(arrival_s, own_prompt(number, num_input), num_output, rng, n=n, beam_width=beam_width)
        for number, (arrival_s, (num_input, num_output)) in enumerate(zip(arrivals, lengths, strict=True))
    ]


def in_order(pairs: Sequence[tuple[int, int]], arrivals: Sequence[float], rng: Random) -> list[TimedRequest]:
    """One request for each arrival, with lengths in the order of the list: for recorded traces, in which neighbours
    are alike.

    Raises:
        ConfigError: If there are no pairs.
    """
    lengths = _first(pairs, len(arrivals))
    return [
        _request(arrival_s, own_prompt(number, num_input), num_output, rng)
        for number, (arrival_s, (num_input, num_output)) in enumerate(zip(arrivals, lengths, strict=True))
    ]


def shared_prefix(
    pairs: Sequence[tuple[int, int]],
    arrivals: Sequence[float],
    rng: Random,
    *,
    num_prefix_tokens: int,
    block_size: int = 16,
) -> list[TimedRequest]:
    """Section 6.4: every prompt is one common prefix and a task of its own.

    As in the authors' script the common part is cut to whole blocks, and the rest of it goes before each task's own
    tokens, where nothing is shared.

    Args:
        pairs: (tokens of the task, tokens of its answer).
        num_prefix_tokens: 80 for the paper's instruction with one example, 341 with five.
        block_size: Tokens per KV block.

    Raises:
        ConfigError: If there are no pairs, or the prefix is negative.
    """
    if num_prefix_tokens < 0:
        raise ConfigError("num_prefix_tokens", num_prefix_tokens, "at least 0")
    rest = num_prefix_tokens % block_size
    prefix = [_PREFIX_TOKEN] * (num_prefix_tokens - rest)
    lengths = _first(pairs, len(arrivals))
    rng.shuffle(lengths)
    return [
        _request(arrival_s, prefix + own_prompt(number, rest + num_input), num_output, rng)
        for number, (arrival_s, (num_input, num_output)) in enumerate(zip(arrivals, lengths, strict=True))
    ]


def chat_rounds(
    conversations: Sequence[Conversation],
    arrivals: Sequence[float],
    rng: Random,
    *,
    new_prob: float = 0.1,
    max_prompt_tokens: int = 1024,
    max_output_tokens: int = 1016,
) -> list[TimedRequest]:
    """Section 6.5: each arrival is the next round of a conversation; its prompt is the last `max_prompt_tokens` of
    history and query. No KV is kept between rounds, so prompts share nothing here.

    As in the authors' scripts the first conversations are taken, with as many rounds as there are arrivals, so that
    every one of them comes to its end. With probability `new_prob` an arrival begins a conversation, drawn from those
    that have not begun, while there are such; else it goes on with one that has. The scripts set 0.5 for vLLM and 0.1
    for Orca, which makes two workloads of it; here one value serves all systems, the scripts' default. Their cap on
    answers is 1016 tokens (2048 - 1024 - 8); the paper says 1024.
    The history holds answers at their recorded lengths, not cut to the cap.

    Raises:
        ConfigError: If there are no conversations, or `new_prob` is not from 0 to 1.
    """
    chooser = _RoundChooser(conversations, len(arrivals), rng, new_prob)
    requests = []
    for number, arrival_s in enumerate(arrivals):
        chosen = chooser.next()
        query, answer = chosen.rounds[chosen.num_done]
        num_input = min(chosen.num_history_tokens + query, max_prompt_tokens)
        requests.append(_request(arrival_s, own_prompt(number, num_input), min(answer, max_output_tokens), rng))
        chooser.done(chosen)
    return requests


def multi_turn(
    conversations: Sequence[Conversation],
    arrivals: Sequence[float],
    rng: Random,
    *,
    new_prob: float = 0.1,
    max_model_len: int = 2048,
) -> list[TimedRequest]:
    """Conversations whose history is sent whole, so that a round's prompt begins with the round before it: what prefix
    caching is for.

    Rounds arrive as in `chat_rounds`. A conversation ends when its next round would not fit `max_model_len`. Answers
    stand in the history as the tokens that a simulated engine gives. An arrival does not wait for the answer
    before it; one that comes early finds less of its history in the cache.

    Raises:
        ConfigError: If no conversation's first round fits, or `new_prob` is not from 0 to 1.
    """
    fitting = [cut for rounds in conversations if (cut := _fitting(rounds, max_model_len))]
    if conversations and not fitting:
        raise ConfigError("max_model_len", max_model_len, "enough for the first round of some conversation")
    chooser = _RoundChooser(fitting, len(arrivals), rng, new_prob)
    requests = []
    for number, arrival_s in enumerate(arrivals):
        chosen = chooser.next()
        query, answer = chosen.rounds[chosen.num_done]
        prompt = chosen.tokens + own_prompt(number, query)
        requests.append(_request(arrival_s, prompt, answer, rng))
        chosen.tokens = prompt + [TOKEN] * answer
        chooser.done(chosen)
    return requests


def own_prompt(number: int, num_tokens: int) -> list[int]:
    """A prompt that shares no prefix with that of any other `number`. A single token is 0: it is computed anyway."""
    return [_FIRST_OWN_TOKEN + number] + [0] * (num_tokens - 1) if num_tokens > 1 else [0] * num_tokens


class _Chat:
    """A conversation that has begun."""

    def __init__(self, rounds: Conversation) -> None:
        self.rounds = rounds
        self.num_done = 0
        self.num_history_tokens = 0
        self.tokens: list[int] = []


class _RoundChooser:
    """Which conversation goes on at each arrival: the first conversations of the list, with as many rounds as there
    are arrivals, all of them to their end."""

    def __init__(self, conversations: Sequence[Conversation], num_arrivals: int, rng: Random, new_prob: float) -> None:
        if not conversations:
            raise ConfigError("conversations", [], "at least one conversation")
        if not 0 <= new_prob <= 1:
            raise ConfigError("new_prob", new_prob, "from 0 to 1")
        self._rng = rng
        self._new_prob = new_prob
        self._waiting = _first_rounds(conversations, num_arrivals)
        self._begun: list[_Chat] = []
        rng.shuffle(self._waiting)

    def next(self) -> _Chat:
        """The conversation whose next round comes now."""
        begins = self._rng.random() < self._new_prob and self._waiting
        if begins or not self._begun:
            self._begun.append(_Chat(self._waiting.pop()))
        else:
            place = self._rng.randrange(len(self._begun))
            self._begun[place], self._begun[-1] = self._begun[-1], self._begun[place]
        return self._begun[-1]

    def done(self, chosen: _Chat) -> None:
        """A round of the conversation that `next` gave last is over."""
        chosen.num_history_tokens += sum(chosen.rounds[chosen.num_done])
        chosen.num_done += 1
        if chosen.num_done == len(chosen.rounds):
            self._begun.pop()


def _first_rounds(conversations: Sequence[Conversation], num_rounds: int) -> list[Conversation]:
    """The first conversations, from the beginning again when there are too few, the last one cut to make the number of
    rounds exact."""
    found = []
    for rounds in cycle(conversations):
        if num_rounds <= 0:
            break
        found.append(rounds[:num_rounds])
        num_rounds -= len(rounds)
    return found


def _fitting(rounds: Conversation, max_model_len: int) -> Conversation:
    total = 0
    for i, (query, answer) in enumerate(rounds):
        total += query + answer
        if total > max_model_len:
            return rounds[:i]
    return rounds


def _first(pairs: Sequence[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """The first `count` pairs, from the beginning again when there are not as many."""
    if not pairs:
        raise ConfigError("lengths", [], "at least one pair")
    laps = -(-count // len(pairs))
    return [pair for _ in range(laps) for pair in pairs][:count]


def _request(
    arrival_s: float,
    token_ids: list[int],
    num_output_tokens: int,
    rng: Random,
    *,
    n: int = 1,
    beam_width: int | None = None,
) -> TimedRequest:
    return TimedRequest(
        arrival_s=arrival_s,
        token_ids=token_ids,
        num_output_tokens=num_output_tokens,
        n=n,
        beam_width=beam_width,
        seed=rng.randrange(_SEEDS),
    )
