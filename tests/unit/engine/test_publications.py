"""What is published again, and under which names nothing can be published."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from octavo.engine.input_processor import InputProcessor
from octavo.engine.publications import Publications, check_unpublished, find_published
from octavo.engine.tokenizer import Tokenizer
from octavo.errors import OctavoError, RequestError
from octavo.messages import PUBLIC_TENANT, PublishedPrefix, TokenDelta
from support.hosts import request
from support.infos import tiny_info


def published(request_id: int, name: str, publications: Publications) -> None:
    asked = msgspec.structs.replace(request(request_id, [1, 2], max_tokens=0), publish=name)
    publications.note(asked, TokenDelta(request_id, 0, [5], "length"))


def test_only_what_succeeded_is_repeated() -> None:
    publications = Publications()
    published(1, "one", publications)
    publications.note(request(2, [1]), TokenDelta(2, 0, [5], "length"))
    failed = msgspec.structs.replace(request(3, [1]), publish="failed")
    publications.note(failed, TokenDelta(3, 0, [], "error"))
    (again,) = publications.repeated(itertools.count(-1, -1))
    assert (again.publish, again.request_id, again.token_ids) == ("one", -1, [1, 2])
    assert publications.being_repeated("one") == [-1]
    publications.note_repeated(TokenDelta(-1, 0, [5], "length"))
    assert publications.being_repeated("one") == [] and publications.forget("one")
    assert not publications.forget("one") and publications.repeated(itertools.count(-1, -1)) == []


def test_what_cannot_be_repeated_is_told_and_dropped(caplog: pytest.LogCaptureFixture) -> None:
    publications = Publications()
    published(1, "one", publications)
    publications.repeated(itertools.count(-1, -1))
    publications.note_repeated(TokenDelta(-1, 0, [], "error", error="no room"))
    assert "'one' could not be published again: no room" in caplog.text
    assert publications.repeated(itertools.count(-5, -1)) == []


def test_names_are_looked_up() -> None:
    prefixes = [PublishedPrefix(name="a", num_tokens=16, num_blocks=1)]
    assert find_published("a", prefixes) is prefixes[0]
    check_unpublished("b", prefixes)
    with pytest.raises(RequestError, match="withdraw it first"):
        check_unpublished("a", prefixes)
    with pytest.raises(OctavoError, match="was withdrawn"):
        find_published("b", prefixes)


def test_a_publication_is_a_request_for_no_tokens(tinystories: Tokenizer) -> None:
    inputs = InputProcessor(tiny_info(), tinystories)
    asked = inputs.prepare_publication("system.v1", list(range(3, 12))).request
    assert (asked.publish, asked.tenant, asked.max_tokens) == ("system.v1", PUBLIC_TENANT, 0)
    for name in ("", ".x", "a/b", "a b", "x" * 129, "é", 5):
        with pytest.raises(RequestError) as caught:
            inputs.prepare_publication(name, list(range(3, 12)))  # type: ignore[arg-type]
        assert caught.value.param == "name"
    with pytest.raises(RequestError, match="7 tokens, which fill no block of 8"):
        inputs.prepare_publication("short", list(range(3, 10)))
