"""What a batch has written: its finished lines, each once, whatever became of the server meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from octavo.server.batches.lines import LineResult

_TAIL_BYTES = 1 << 16


class Progress:
    """Answers and errors of a batch, appended line by line.

    A line is written with one system call before it counts as finished, so a server that is killed loses none. What
    is found of an earlier run is gone on with; a last line that was cut short is removed.

    Attributes:
        done: The custom ids of finished lines.
    """

    def __init__(self, output: Path, errors: Path) -> None:
        self._output, self._errors = _Lines(output), _Lines(errors)
        self.done: set[str] = set()

    def __enter__(self) -> Progress:
        self.done = self._output.open() | self._errors.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._output.close()
        self._errors.close()

    @property
    def num_completed(self) -> int:
        return self._output.count

    @property
    def num_failed(self) -> int:
        return self._errors.count

    def sync(self) -> None:
        """Wait until everything is on the disk. Takes its time: call it in a thread."""
        self._output.sync()
        self._errors.sync()

    def add(self, result: LineResult) -> None:
        """Write a line's result, once."""
        assert result.custom_id is not None and result.custom_id not in self.done
        (self._output if result.ok else self._errors).append(result.text())
        self.done.add(result.custom_id)


class _Named(msgspec.Struct):
    custom_id: str


class _Lines:
    """A file of lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self.count = 0

    def open(self) -> set[str]:
        """Open for appending; the custom ids of the lines that are there."""
        self._file = self._path.open("ab+", buffering=0)
        self._file.truncate(self._whole_bytes())
        with self._path.open("rb") as lines:
            ids = [msgspec.json.decode(line, type=_Named).custom_id for line in lines]
        self.count = len(ids)
        return set(ids)

    def _whole_bytes(self) -> int:
        """Where the last whole line ends."""
        with self._path.open("rb") as lines:
            end = lines.seek(0, os.SEEK_END)
            while end > 0:
                begin = max(0, end - _TAIL_BYTES)
                lines.seek(begin)
                at = lines.read(end - begin).rfind(b"\n")
                if at >= 0:
                    return begin + at + 1
                end = begin
        return 0

    def append(self, line: bytes) -> None:
        assert self._file is not None
        end = self._file.seek(0, os.SEEK_END)
        view = memoryview(line)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError:  # a full disk: no half of a line may stand before the next one
            self._file.truncate(end)
            raise
        self.count += 1

    def sync(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
