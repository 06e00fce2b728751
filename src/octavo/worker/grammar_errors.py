"""Why a grammar is refused, in the words of whoever wrote it: the field, the keyword, and what may stand there.

llguidance says what is wrong in its own terms and without the place; of schemas see `schema_errors`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from octavo.errors import RequestError
from octavo.structured import JSON_SCHEMA, REGEX, Grammar
from octavo.worker.schema_errors import MAX_MESSAGE_CHARS, bad_regex, refused, schema_refusal

if TYPE_CHECKING:
    import llguidance

_JSON = "failed to compile JSON schema: "
_GAVE_UP = ("ParserTooComplex", "LexerTooComplex")
_TOO_MUCH = ("too many", "too big", "too deeply", "limit", "left-recursive")


def refusal(grammar: Grammar, matcher: llguidance.LLMatcher) -> RequestError:
    """Why a grammar was not compiled: an error whose message begins with the field."""
    param = grammar.param
    where, text = _position(_said(matcher))
    own = param.endswith("grammar")  # else the lines are not the caller's
    if text.startswith(_JSON) or grammar.kind == JSON_SCHEMA:
        text = text.removeprefix(_JSON)
        return schema_refusal(grammar, text) or refused(param, _general(matcher) or _unexplained(text))
    if (general := _general(matcher)) is not None:
        return refused(param, general)
    if grammar.kind == REGEX or text.startswith("invalid regex"):
        return refused(param, f"{where if own else ''}{bad_regex(text)}")
    return refused(param, f"{where if own else ''}{_notation(text)}")


def explained(matcher: llguidance.LLMatcher) -> str:
    """Why a matcher gave up on the way."""
    if gave_up(matcher):
        return "is too complex: the answer so far can be read in too many ways"
    return _general(matcher) or "the answer so far does not obey it"


def gave_up(matcher: llguidance.LLMatcher) -> bool:
    """Whether a limit ended the matcher, rather than a token that may not follow."""
    return matcher.stop_reason() in _GAVE_UP or any(sign in _said(matcher).lower() for sign in _TOO_MUCH)


def _said(matcher: llguidance.LLMatcher) -> str:
    return " ".join(matcher.get_error().replace("<non-verbose/>", "").split())


def _general(matcher: llguidance.LLMatcher) -> str | None:
    text = _said(matcher)
    if text in ("NoExtension", "NoExtensionBias"):
        return "nothing can match it"
    if gave_up(matcher):
        return f"is too complex ({text[:MAX_MESSAGE_CHARS]})"
    return None


def _position(text: str) -> tuple[str, str]:
    """(place, message) of an error that begins with line and column and ends with an excerpt."""
    found = re.match(r"(?:at )?(\d+)\((\d+)\): (.*?)(?: \d+ \| .*)?$", text)
    return ("", text) if found is None else (f"line {found[1]}, column {found[2]}: ", found[3])


def _notation(text: str) -> str:
    if found := re.match(r'unknown name: (".*?")', text):
        return f"there is no rule or terminal named {found[1]}"
    if text == "no start rule found":
        return 'there is no rule named "start" (in GBNF: "root")'
    if found := re.match(r"unknown special token: (\".*?\")", text):
        return f"the model has no control token {found[1]}"
    return f"is no usable grammar: {text[:MAX_MESSAGE_CHARS]}"


def _unexplained(text: str) -> str:
    nothing = "Unsatisfiable schema: "
    if text.startswith(nothing):
        return f"nothing can match it: {text.removeprefix(nothing)[:MAX_MESSAGE_CHARS]}"
    return f"cannot be held: {text[:MAX_MESSAGE_CHARS]}"
