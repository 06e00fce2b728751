"""What may be asked of a running engine besides requests: a closed list of questions, each with the type of its answer.

A question is put to the core between two steps, in whatever thread or process that lives. All of them may be asked
again without harm, which is what a host does when the engine dies before it has answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec

from octavo.errors import RequestError
from octavo.messages import EngineStats, KVBlock, KVStats, PublishedPrefix

if TYPE_CHECKING:
    from octavo.core.engine_core import EngineCore

A = TypeVar("A")


class Question(msgspec.Struct, Generic[A], frozen=True, array_like=True):
    """Base of all questions; `A` is the type of the answer."""

    answer_type: ClassVar[Any]
    """`A` again, for the decoder on the other side of a socket."""

    def put_to(self, core: EngineCore) -> A:
        """The core's answer."""
        raise NotImplementedError  # abstract: the metaclass of msgspec's structs leaves no room for that of abc


class Audit(Question[list[str]], frozen=True, array_like=True, tag="audit"):
    """Broken invariants of the block memory, one sentence each."""

    repair: bool = False
    """Also mend what is found; what is told is what was found."""

    answer_type = list[str]

    def put_to(self, core: EngineCore) -> list[str]:
        return core.audit(repair=self.repair)


class GetStats(Question[EngineStats], frozen=True, array_like=True, tag="stats"):
    """What the engine does at this moment."""

    answer_type = EngineStats

    def put_to(self, core: EngineCore) -> EngineStats:
        return core.stats()


class GetKVStats(Question[KVStats], frozen=True, array_like=True, tag="kv_stats"):
    """Where every KV block is."""

    answer_type = KVStats

    def put_to(self, core: EngineCore) -> KVStats:
        return core.kv_stats()


class GetKVBlocks(Question[list[KVBlock]], frozen=True, array_like=True, tag="kv_blocks"):
    """At most `count` blocks from the id `first` on."""

    first: int
    count: int

    answer_type = list[KVBlock]

    def put_to(self, core: EngineCore) -> list[KVBlock]:
        return core.kv_blocks(self.first, self.count)


class ResetPrefixCache(Question[int], frozen=True, array_like=True, tag="reset"):
    """Forget the cached content of one tenant, or of all; how many blocks that freed."""

    tenant: str | None = None

    answer_type = int

    def put_to(self, core: EngineCore) -> int:
        return core.reset_prefix_cache(self.tenant)


class Withdraw(Question[bool], frozen=True, array_like=True, tag="withdraw"):
    """Let go of a published prefix; whether there was one of this name."""

    name: str

    answer_type = bool

    def put_to(self, core: EngineCore) -> bool:
        return core.withdraw(self.name)


class GetPublished(Question[list[PublishedPrefix]], frozen=True, array_like=True, tag="published"):
    """The published prefixes."""

    answer_type = list[PublishedPrefix]

    def put_to(self, core: EngineCore) -> list[PublishedPrefix]:
        return core.published()


AnyQuestion = Audit | GetStats | GetKVStats | GetKVBlocks | ResetPrefixCache | Withdraw | GetPublished


def check_page(first: int, count: int) -> None:
    """Raises RequestError unless `first` and `count` can name a page of blocks."""
    for name, value, low in (("first", first, 0), ("count", count, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 1 << 31:
            raise RequestError(name, value, f"an integer from {low} to 2147483647")
