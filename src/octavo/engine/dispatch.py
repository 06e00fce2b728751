"""Delivers what an engine makes known to the requests that wait for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from octavo.engine.best_of import BestOf
from octavo.engine.host import Host
from octavo.engine.input_processor import Prepared
from octavo.engine.loop import Batch
from octavo.engine.output_processor import OutputProcessor
from octavo.engine.outputs import TextDelta
from octavo.engine.tokenizer import Tokenizer
from octavo.errors import EngineDeadError, OctavoError
from octavo.messages import TokenLogprobs

_pack_logprobs = msgspec.msgpack.Encoder().encode
_unpack_logprobs = msgspec.msgpack.Decoder(list[TokenLogprobs]).decode


class Tap(Protocol):
    """Takes deltas on the spot, so that nobody need be woken for each."""

    def take(self, delta: TextDelta) -> bool:
        """Take a delta, never an answer's last. False if it must wait in the mailbox, and the reader be woken."""
        ...

    def flush(self) -> None:
        """Those of one step have all been offered."""
        ...


class Unread:
    """What of one answer waits to be read: its deltas as one.

    Log-probabilities wait packed once there are those of a second delta: as objects, twenty for a token take some
    kilobytes, more than the text that becomes of them.
    """

    def __init__(self, delta: TextDelta) -> None:
        self._delta = delta
        self._packed: list[bytes] = []

    def append(self, later: TextDelta) -> None:
        if later.logprobs is not None:
            self._pack(self._delta)
            self._pack(later)
        self._delta.append(later)

    def _pack(self, delta: TextDelta) -> None:
        if delta.logprobs is not None:
            self._packed.append(_pack_logprobs(delta.logprobs))
            delta.logprobs = None

    def joined(self) -> TextDelta:
        """The delta. It is the caller's then."""
        if self._packed:
            self._delta.logprobs = [entry for piece in self._packed for entry in _unpack_logprobs(piece)]
        return self._delta


class Mailbox:
    """One request's deltas until they are read.

    Deltas of one answer are joined while nobody reads, so a slow reader costs the memory of one answer at most. Answers
    are read one by one; the others stay packed meanwhile.
    """

    def __init__(
        self, prepared: Prepared, tokenizer: Tokenizer, wake: Callable[[], None], tap: Tap | None = None
    ) -> None:
        self.prepared = prepared
        self.processor = OutputProcessor(prepared, tokenizer)
        drawn, returned = prepared.request.sampling.n, prepared.params.n
        self._best_of = BestOf(prepared.params) if drawn > returned else None
        self._notify = wake
        self.tap = tap
        self.at_rest = False
        """Whether the reader has done with all that was taken, and waits. Only then may the tap have what comes."""
        self.num_waiting_tokens = len(prepared.prompt_token_ids)
        """The prompt's, until the answer begins; then 0."""
        self._unread: dict[int, Unread] = {}
        self._error: Exception | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self._error is not None or self.processor.finished

    def take(self) -> TextDelta | None:
        """All that is unread of one answer, of that which has waited longest; None if nothing is.

        Raises:
            Exception: Why the request failed, once all before it is read; an OctavoError unless it is a fault of ours.
        """
        if self._unread:
            return self._unread.pop(next(iter(self._unread))).joined()
        if self._error is not None:
            raise self._error
        return None

    def put(self, delta: TextDelta) -> bool:
        """Take in what the processor made of a step. Whether the tap took it."""
        if self._best_of is None:
            if self.at_rest and self.tap is not None and delta.finish_reason is None and self.tap.take(delta):
                return True
            self._keep(delta)
        else:
            self._best_of.add(delta)
            if not self.processor.finished:
                return False
            for answer in self._best_of.chosen():
                self._keep(answer)
        self._wake()
        return False

    def _wake(self) -> None:
        self.at_rest = False
        self._notify()

    def _keep(self, delta: TextDelta) -> None:
        earlier = self._unread.get(delta.index)
        if earlier is None:
            self._unread[delta.index] = Unread(delta)
        else:
            earlier.append(delta)

    def fail(self, error: Exception) -> None:
        if not self.finished:
            self._error = error
        self._wake()


class Dispatcher:
    """The requests in flight on one host. For one thread."""

    def __init__(self, host: Host, tokenizer: Tokenizer) -> None:
        self._host = host
        self._tokenizer = tokenizer
        self._mailboxes: dict[int, Mailbox] = {}
        self.num_waiting_tokens = 0
        """Prompt tokens of the requests whose answers have not begun."""

    def __len__(self) -> int:
        return len(self._mailboxes)

    def open(self, prepared: Prepared, wake: Callable[[], None], tap: Tap | None = None) -> Mailbox:
        """Submit a request. `wake` is called whenever there is something new to take that `tap` did not.

        Raises:
            EngineDeadError: If there is no engine.
        """
        mailbox = Mailbox(prepared, self._tokenizer, wake, tap)
        self._host.submit(prepared.request)
        self._mailboxes[prepared.request_id] = mailbox
        self.num_waiting_tokens += mailbox.num_waiting_tokens
        return mailbox

    def close(self, mailbox: Mailbox) -> None:
        """Nobody waits any more: what has not ended is aborted. Repeatable."""
        known = self._mailboxes.pop(mailbox.prepared.request_id, None)
        self._waits_no_more(mailbox)
        if known is not None and not mailbox.finished:
            self._host.abort(mailbox.prepared.request_id)

    def deliver(self, batch: Batch) -> None:
        """Hand out a batch; aborts answers that a stop string has ended. What goes wrong ends one request."""
        taps: dict[int, Tap] = {}
        for delta in batch.deltas:
            mailbox = self._mailboxes.get(delta.request_id)
            if mailbox is None:
                continue
            if mailbox.num_waiting_tokens:
                self._waits_no_more(mailbox)
            ended = delta.finish_reason is not None
            try:
                text = mailbox.processor.process(delta)
                if text is not None:
                    if text.finish_reason is not None and not ended:
                        self._host.abort(delta.request_id, delta.index)
                    if mailbox.put(text) and mailbox.tap is not None:
                        taps[delta.request_id] = mailbox.tap
            except EngineDeadError:
                raise
            except Exception as error:
                self._host.abort(delta.request_id)
                mailbox.fail(error)
            if mailbox.finished:
                del self._mailboxes[delta.request_id]
        for tap in taps.values():
            tap.flush()

    def _waits_no_more(self, mailbox: Mailbox) -> None:
        self.num_waiting_tokens -= mailbox.num_waiting_tokens
        mailbox.num_waiting_tokens = 0

    def fail(self, error: OctavoError) -> None:
        """The engine is gone: every request ends with `error`."""
        mailboxes, self._mailboxes = self._mailboxes, {}
        for mailbox in mailboxes.values():
            self._waits_no_more(mailbox)
        for mailbox in mailboxes.values():
            mailbox.fail(error)
