"""Prompts being computed right now, so that nobody computes the same blocks at the same time.

A request whose next block is being computed by another one waits for it, out of the queue, so that others may pass.
When the block is there it is a hit. When whoever computed it is gone, the first to wait takes over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from octavo.core.request import Sequence


class InFlightPrefixes:
    """Who computes which block, and who waits for it. Blocks are named by their keys."""

    def __init__(self) -> None:
        self._computing: dict[bytes, Sequence] = {}
        self._keys: dict[Sequence, list[bytes]] = {}
        """What a sequence registered, in order."""
        self._waiting: dict[bytes, dict[Sequence, None]] = {}
        self._waits_for: dict[Sequence, bytes] = {}
        self.num_waits = 0
        self.num_takeovers = 0

    def __len__(self) -> int:
        return len(self._waits_for)

    def __iter__(self) -> Iterator[Sequence]:
        """Everyone who waits."""
        return iter(self._waits_for)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._waits_for

    @property
    def num_computing(self) -> int:
        """Blocks that are being computed."""
        return len(self._computing)

    def begin(self, sequence: Sequence, keys: list[bytes]) -> None:
        """A sequence was admitted and computes the blocks of these keys, the ones that nobody else computes."""
        own = []
        for key in keys:
            if key not in self._computing:
                self._computing[key] = sequence
                own.append(key)
        if own:
            self._keys[sequence] = own

    def last_shared(self, keys: Iterable[bytes]) -> bytes | None:
        """The last of the keys for which waiting pays: the end of the run, from the first on, that is being
        computed. None if the first is not."""
        last = None
        for key in keys:
            if key not in self._computing:
                break
            last = key
        return last

    def wait(self, sequence: Sequence, key: bytes) -> None:
        """Let a sequence wait until a block is there, or nobody computes it any more."""
        self._waiting.setdefault(key, {})[sequence] = None
        self._waits_for[sequence] = key
        self.num_waits += 1

    def done(self, keys: list[bytes]) -> list[Sequence]:
        """Blocks were computed; returns who waited for them."""
        woken: list[Sequence] = []
        for key in keys:
            sequence = self._computing.pop(key, None)
            if sequence is not None:
                left = self._keys[sequence]
                left.remove(key)
                if not left:
                    del self._keys[sequence]
                woken += self._wake(key)
        return woken

    def leave(self, sequence: Sequence) -> list[Sequence]:
        """A sequence computes no more, finished or not; returns who waited for what it leaves."""
        woken: list[Sequence] = []
        for key in self._keys.pop(sequence, ()):
            del self._computing[key]
            woken += self._wake(key)
        if woken:
            self.num_takeovers += 1
        return woken

    def give_up(self, sequence: Sequence) -> None:
        """A sequence that waits has ended."""
        key = self._waits_for.pop(sequence)
        waiting = self._waiting[key]
        del waiting[sequence]
        if not waiting:
            del self._waiting[key]

    def _wake(self, key: bytes) -> list[Sequence]:
        woken = list(self._waiting.pop(key, ()))
        for sequence in woken:
            del self._waits_for[sequence]
        return woken
