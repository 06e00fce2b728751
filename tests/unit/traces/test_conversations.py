"""Whole conversations as rounds."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import ConfigError
from octavo.traces.conversations import read_conversations, sharegpt_conversations

HEADER = "conversation,turn,role,tokens\n"


def write(tmp_path: Path, messages: list[tuple[str, str, int]]) -> Path:
    path = tmp_path / "conversations.csv"
    path.write_text(HEADER + "".join(f"{c},{i},{role},{tokens}\n" for i, (c, role, tokens) in enumerate(messages)))
    return path


def test_the_bundled_conversations() -> None:
    """Counted from the file: 8,000 conversations; six hold no round."""
    conversations = sharegpt_conversations()
    assert len(conversations) == 7994
    queries = [query for rounds in conversations for query, _ in rounds]
    answers = [answer for rounds in conversations for _, answer in rounds]
    # The file's user messages have a mean of 96.1, the assistant's 355.4; conversations that were cut begin with an
    # assistant's message, often a long one, which counts to the first query.
    assert len(queries) == 27_929
    assert statistics.mean(queries) == pytest.approx(153.79, abs=0.01)
    assert statistics.mean(answers) == pytest.approx(335.47, abs=0.01)
    assert min(queries) >= 1
    assert min(answers) >= 1


def test_rounds_are_questions_with_answers(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        [
            ("a", "assistant", 9),  # nobody asked: the end of another piece
            ("a", "user", 1),
            ("a", "assistant", 2),
            ("b", "system", 10),
            ("b", "user", 3),
            ("b", "assistant", 4),
            ("a", "user", 5),
            ("a", "user", 6),
            ("a", "assistant", 7),
            ("a", "assistant", 8),
            ("a", "user", 100),  # never answered
            ("c", "user", 1),
            ("d", "user", 0),
            ("d", "assistant", 3),
            ("d", "user", 2),
            ("d", "assistant", 0),
            ("d", "assistant", 4),
        ],
    )
    assert read_conversations(path) == [[(10, 2), (11, 15)], [(13, 4)], [(5, 4)]]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a,b\n", "line 1: columns = 'a,b'"),
        (HEADER + "0,0,user\n", "line 2: line = '0,0,user'"),
        (HEADER + "0,0,user,many\n", "line 2: tokens = 'many'"),
        (HEADER + "0,0,human,5\n", "line 2: role = 'human'"),
        (HEADER + "0,0,user,5\n", "the file holds no round"),
        (HEADER, "the file holds no round"),
    ],
)
def test_bad_conversations_are_refused_by_line(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "conversations.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_conversations(path)
    assert where in str(caught.value)


@settings(max_examples=100, deadline=None)
@given(
    messages=st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(["user", "assistant", "system"]), st.integers(0, 9)),
        max_size=30,
    )
)
def test_no_answer_is_lost(tmp_path_factory: pytest.TempPathFactory, messages: list[tuple[str, str, int]]) -> None:
    path = write(tmp_path_factory.getbasetemp(), messages)
    try:
        conversations = read_conversations(path)
    except ConfigError:
        return
    assert all(rounds and all(query >= 1 and answer >= 1 for query, answer in rounds) for rounds in conversations)
    said = sum(tokens for _, _, tokens in messages)
    assert sum(query + answer for rounds in conversations for query, answer in rounds) <= said
