"""Forms, read piece by piece."""

from __future__ import annotations

import random
from typing import Any

import pytest

from octavo.server.batches.multipart import MultipartParser
from octavo.server.openai.errors import HTTPProblem

BOUNDARY = b"xyZ-09"
TYPE = b"multipart/form-data; boundary=" + BOUNDARY
TRICKY = [b"", b"\r\n", b"--", b"a\r\n--xyZ-0", b"\r\n--", b"\r\r\n\n--x", b"x" * 3000, b"\r\n\r\n--xyZ-0\r\n"]


def form(fields: list[tuple[str, bytes]], end: bytes = b"--\r\n") -> bytes:
    parts = [b"--%b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (BOUNDARY, h.encode(), d) for h, d in fields]
    return b"".join(parts) + b"--" + BOUNDARY + end


def parse(pieces: list[bytes], content_type: bytes | None = TYPE) -> list[tuple[str, str | None, bytes]]:
    parser = MultipartParser(content_type)
    found: list[Any] = []
    for piece in pieces:
        for event in parser.feed(piece):
            if isinstance(event, bytes):
                found[-1][2] += event
            else:
                found.append([event.name, event.filename, b""])
    parser.finish()
    return [tuple(entry) for entry in found]


def test_fields_and_files_come_back_however_they_are_cut() -> None:
    fields = [('name="purpose"', b"batch"), *((f'name="file"; filename="f{i}"', data) for i, data in enumerate(TRICKY))]
    whole = form(fields)
    wanted = [("purpose", None, b"batch"), *(("file", f"f{i}", data) for i, data in enumerate(TRICKY))]
    assert parse([whole]) == wanted
    results = set()
    draw = random.Random(5)
    for _ in range(300):
        cuts = sorted(draw.sample(range(len(whole)), draw.randint(0, 40)))
        results.add(tuple(parse([whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)])))
    results.add(tuple(parse([whole[i : i + 1] for i in range(len(whole))])))
    assert results == {tuple(wanted)}


@pytest.mark.parametrize(
    ("disposition", "filename"),
    [
        ('name="file"; filename="in.jsonl"', "in.jsonl"),
        ('filename="/etc/passwd"; name="file"', "passwd"),
        ('name="file"; filename="C:\\\\dir\\\\in.jsonl"', "in.jsonl"),
        ('name="file"; filename="../../x"', "x"),
        ('name="file"; filename=".."', ".."),
        ('name="file"; filename=""', "file"),
        ('name="file"; filename="a\\"b"', 'a"b'),
        ('name="file"; filename="naïve.jsonl"', "naïve.jsonl"),
        ('name="file"; filename="' + "n" * 300 + '"', "n" * 255),
    ],
)
def test_names_of_files_are_names_alone(disposition: str, filename: str) -> None:
    assert parse([form([(disposition, b"x")])]) == [("file", filename, b"x")]


@pytest.mark.parametrize("content_type", [b'Multipart/Form-Data; charset=utf-8; boundary="xyZ-09"', TYPE + b"; x=y"])
def test_other_spellings_of_the_boundary(content_type: bytes) -> None:
    assert parse([form([('name="a"', b"b")])], content_type) == [("a", None, b"b")]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "ends before"),
        (form([('name="a"', b"b")], end=b""), "ends before"),
        (b"--xyZ-09\r\nContent-Disposition: form-data\r\n\r\nx\r\n--xyZ-09--", "without a name"),
        (b"--xyZ-09\r\nContent-Type: text/plain\r\n\r\nx\r\n--xyZ-09--", "without a name"),
        (b"--xyZ-09 oops\r\n", "behind a boundary"),
        (b"--xyZ-09" + b" " * 9000, "does not end"),
        (b"--xyZ-09\r\n" + b"A: b\r\n" * 2000, "bytes of headers"),
        (b"z" * 9000, "does not begin"),
    ],
)
def test_broken_forms_are_refused(body: bytes, why: str) -> None:
    for pieces in ([body], [body[i : i + 7] for i in range(0, len(body), 7)]):
        with pytest.raises(HTTPProblem, match=why):
            parse(pieces)


@pytest.mark.parametrize(
    "content_type", [None, b"", b"application/json", b"multipart/form-data", b"multipart/form-data; boundary="]
)
def test_other_bodies_are_no_forms(content_type: bytes | None) -> None:
    with pytest.raises(HTTPProblem) as caught:
        MultipartParser(content_type)
    assert caught.value.reply.status == 415
