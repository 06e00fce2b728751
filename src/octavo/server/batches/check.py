"""Whether a file is a batch: every line looked at before the first is run."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import RequestError
from octavo.server.batches.lines import parse_line
from octavo.server.batches.records import BatchError
from octavo.server.openai.errors import HTTPProblem, reply_to

MAX_LINES = 50_000
"""Requests in one batch; OpenAI's limit."""

MAX_ERRORS = 100
"""Errors told of one file."""


def check_input(path: Path, endpoint: str, max_line_bytes: int) -> tuple[int, list[BatchError]]:
    """(requests, what is wrong). Takes its time: call it in a thread."""
    errors: list[BatchError] = []
    ids: set[str] = set()
    count = 0
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, 1):
            if not raw.strip():
                continue
            count += 1
            if count > MAX_LINES:
                errors.append(_error("too_many_requests", f"the file holds more than {MAX_LINES} requests", None, None))
                break
            if (error := _error_in(raw, number, endpoint, max_line_bytes, ids)) is not None:
                errors.append(error)
                if len(errors) == MAX_ERRORS:
                    break
    if not count:
        errors.append(_error("empty_file", "the file holds no request", None, None))
    return count, errors


def _error_in(raw: bytes, number: int, endpoint: str, max_bytes: int, ids: set[str]) -> BatchError | None:
    if len(raw) > max_bytes:
        return _error("line_too_long", f"the line is longer than {max_bytes} bytes (--max-body-bytes)", None, number)
    try:
        line = parse_line(raw, (endpoint,))
    except (RequestError, HTTPProblem) as error:
        reply = reply_to(error)
        return _error(reply.code or "invalid_line", reply.message, reply.param, number)
    if line.custom_id in ids:
        return _error("duplicate_custom_id", "custom_id: an earlier line has the same", "custom_id", number)
    ids.add(line.custom_id)
    return None


def _error(code: str, message: str, param: str | None, line: int | None) -> BatchError:
    return BatchError(code=code, message=message, param=param, line=line)
