"""Multi-turn ShareGPT: how long each message of whole conversations is."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from octavo.sim.workload import Conversation
from octavo.traces.files import bad, bundled, lines, token_count

_COLUMNS = ["conversation", "turn", "role", "tokens"]


def sharegpt_conversations() -> list[Conversation]:
    """Rounds of 8,000 ShareGPT conversations of 2 to 60 messages, GPT-2 (and so OPT) tokens.

    The paper's chat workload (section 6.5) is made from ShareGPT conversations, too; which ones is not published.
    """
    return list(_bundled())


@cache
def _bundled() -> list[Conversation]:
    return read_conversations(bundled("sharegpt_multiturn_gpt2_lengths.csv.gz"))


def read_conversations(path: Path) -> list[Conversation]:
    """Read conversations from a CSV file (plain or gzip) with columns `conversation`, `turn`, `role` and `tokens`.

    A round is what the user (or a system prompt) says until the assistant answers. What an assistant says before that
    belongs to the first round's query: long conversations were cut into pieces, and it is where the piece before ended.
    A question without an answer is left out, as is a conversation without a round.

    Raises:
        ConfigError: If the file cannot be read or a line is not such a message; the message names file, line, value.
    """
    found = iter(lines(path))
    number, first = next(found)
    if [cell.strip() for cell in first.split(",")] != _COLUMNS:
        raise bad(path, number, "columns", first, ",".join(_COLUMNS))
    conversations: dict[str, _Rounds] = {}
    for number, line in found:
        cells = line.split(",")
        if len(cells) != len(_COLUMNS):
            raise bad(path, number, "line", line, f"{len(_COLUMNS)} values with commas between them")
        name, _, role, text = cells
        # An empty message is no fault: some conversations hold one.
        tokens = token_count(path, number, "tokens", text, least=0)
        rounds = conversations.setdefault(name, _Rounds())
        if role in ("user", "system"):
            rounds.ask(tokens)
        elif role == "assistant":
            rounds.answer(tokens)
        else:
            raise bad(path, number, "role", role, '"user", "system" or "assistant"')
    whole = [rounds.rounds for rounds in conversations.values() if rounds.rounds]
    if not whole:
        raise bad(path, number, "role", "", '"user" and then "assistant" somewhere: the file holds no round')
    return whole


class _Rounds:
    """The rounds of one conversation, message by message."""

    def __init__(self) -> None:
        self.rounds: Conversation = []
        self._opening = self._asked = 0
        self._answering = False

    def ask(self, tokens: int) -> None:
        self._asked += tokens
        self._answering = False

    def answer(self, tokens: int) -> None:
        if self._answering:  # goes on with the answer
            query, answer = self.rounds[-1]
            self.rounds[-1] = (query, answer + tokens)
        elif self._asked and tokens:
            self.rounds.append((self._opening + self._asked, tokens))
            self._opening = self._asked = 0
            self._answering = True
        elif not self.rounds:
            self._opening += tokens
