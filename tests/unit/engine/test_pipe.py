"""Messages between two processes: whole, in order, and without anybody waiting to send one."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from octavo.engine.pipe import Pipe


@pytest.fixture
def ends() -> Iterator[tuple[Pipe, Pipe]]:
    ours, theirs = Pipe.pair()
    pair = ours, Pipe(theirs)
    yield pair
    for end in pair:
        end.close()


def taken(pipe: Pipe, count: int) -> list[bytes]:
    """The next `count` messages."""
    found: list[bytes] = []
    until_s = time.monotonic() + 30
    while len(found) < count and time.monotonic() < until_s:
        message = pipe.receive()
        if message is None:
            pipe.wait(0.1)
        else:
            found.append(message)
    return found


def test_messages_of_any_size_arrive_whole_and_in_order(ends: tuple[Pipe, Pipe]) -> None:
    rng = random.Random(1)
    sizes = [
        0,
        1,
        3,
        4,
        5,
        65_535,
        65_536,
        (1 << 18) - 4,
        1 << 18,
        3_000_000,
        *(rng.randrange(5000) for _ in range(300)),
    ]
    sent = [rng.randbytes(size) for size in sizes]
    for one, other in (ends, ends[::-1]):
        sender = threading.Thread(target=lambda one=one: [one.send(message) for message in sent])
        sender.start()
        waiting = threading.Thread(target=one.wait, args=(5,))  # as an end does that has nothing else to do
        waiting.start()
        assert taken(other, len(sent)) == sent
        sender.join()
        other.send(b"done")
        waiting.join()
        assert taken(one, 1) == [b"done"]


def test_a_message_may_come_in_any_two_pieces() -> None:
    data = b"".join(struct.pack("<I", len(m)) + m for m in (b"first", b"", b"third one"))
    for cut in range(len(data) + 1):
        raw, other = socket.socketpair()
        pipe = Pipe(other)
        raw.sendall(data[:cut])
        early = []
        while (message := pipe.receive()) is not None:
            early.append(message)
        raw.sendall(data[cut:])
        assert early + taken(pipe, 3 - len(early)) == [b"first", b"", b"third one"]
        assert pipe.receive() is None
        raw.close()
        with pytest.raises(EOFError):
            pipe.receive()
        pipe.close()


def test_sending_does_not_wait_for_a_reader(ends: tuple[Pipe, Pipe]) -> None:
    one, other = ends
    message = bytes(1_000_000)
    for _ in range(20):
        one.send(message)
    assert one.receive() is None and other.receive() is None  # the socket has room for a part of the first
    waiting = threading.Thread(target=one.wait, args=(20,))
    waiting.start()
    assert taken(other, 20) == [message] * 20
    other.send(b"enough")
    waiting.join(20)
    assert one.receive() == b"enough"


def test_what_another_thread_sends_goes_out_while_this_one_waits(ends: tuple[Pipe, Pipe]) -> None:
    one, other = ends
    waiting = threading.Thread(target=one.wait, args=(20,))
    waiting.start()
    time.sleep(0.05)
    messages = [bytes([i]) * 500_000 for i in range(5)]
    for message in messages:
        one.send(message)
    assert taken(other, 5) == messages
    other.send(b"")
    waiting.join(20)
    assert not waiting.is_alive()


def test_an_end_that_never_waits_sends_the_rest_when_it_looks_for_messages(ends: tuple[Pipe, Pipe]) -> None:
    one, other = ends
    message = bytes(1_000_000)
    one.send(message)
    found: list[bytes] = []
    for _ in range(10_000):
        assert one.receive() is None
        if (got := other.receive()) is not None:
            found.append(got)
            break
    assert found == [message]


def test_wake_ups_that_nobody_takes_do_not_block(ends: tuple[Pipe, Pipe]) -> None:
    one, other = ends
    with pytest.raises(BlockingIOError):
        while True:
            os.write(one._wake, bytes(4096))
    message = bytes(1_000_000)
    one.send(message)
    waiting = threading.Thread(target=one.wait, args=(20,))
    waiting.start()
    assert taken(other, 1) == [message]
    other.send(b"")
    waiting.join(20)
    assert not waiting.is_alive()


def test_all_that_was_sent_is_received_before_the_end_is_told(ends: tuple[Pipe, Pipe]) -> None:
    one, other = ends
    one.send(b"last")
    one.send(b"words")
    one.close()
    assert taken(other, 2) == [b"last", b"words"]
    other.wait(20)
    with pytest.raises(EOFError):
        other.receive()
    other.send(b"nobody hears this")
    with pytest.raises(EOFError):
        other.receive()
    one.__init__(socket.socket())  # type: ignore[misc]  # for the fixture to close


def test_closing_waits_for_what_is_still_to_be_sent() -> None:
    ours, theirs = Pipe.pair()
    other = Pipe(theirs)
    message = bytes(2_000_000)
    ours.send(message)
    closing = threading.Thread(target=ours.close, args=(20,))
    closing.start()
    assert taken(other, 1) == [message]
    closing.join(20)
    assert not closing.is_alive()
    other.close()


def test_waiting_ends_with_the_time(ends: tuple[Pipe, Pipe]) -> None:
    began_s = time.monotonic()
    ends[0].wait(0.05)
    assert time.monotonic() - began_s >= 0.05
    assert ends[0].receive() is None
