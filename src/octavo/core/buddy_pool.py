"""A pool that gives out blocks in adjacent runs: the allocator of systems that keep a sequence's KV in one piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from octavo.core.accounts import Account
from octavo.core.block_pool import BlockPool
from octavo.errors import InvariantError


def power_of_two(num: int) -> int:
    """The least power of two that is at least `num`."""
    return 1 << (max(1, num) - 1).bit_length()


class BuddyPool(BlockPool):
    """A buddy allocator (Knowlton 1965), as the paper's Orca baselines use it (section 6.1).

    The blocks are cut into as many largest chunks as fit, the tail into smaller powers of two. To take `2**k` blocks
    the smallest free chunk that holds them is halved until it has that size. When a chunk and its buddy, the other
    half of the chunk that both came from, are free, they are one again. Of equal chunks the one freed last is taken
    first.

    Accounts, owners, counts and erasure are those of any pool; nothing is ever cached.

    Args:
        num_blocks: Blocks in the pool, the null block included.
        largest: Blocks of the largest chunk, a power of two.
        erases: As in `BlockPool`.
    """

    def __init__(self, num_blocks: int, largest: int, *, erases: bool = False) -> None:
        super().__init__(num_blocks, erases=erases)
        self.largest = largest
        self._top = largest.bit_length() - 1
        self._chunks: list[dict[int, None]] = [{} for _ in range(self._top + 1)]
        """By power, the free chunks: offsets of their first blocks from block 1, in the order of release."""
        self._num_free = 0
        for offset, order in reversed(list(self._arena())):  # the last is taken first
            self._chunks[order][offset] = None
            self._num_free += 1 << order

    def _arena(self) -> Iterator[tuple[int, int]]:
        """(offset, power) of the chunks of an empty pool."""
        offset = 0
        while offset < self.num_blocks:
            order = min(self._top, (self.num_blocks - offset).bit_length() - 1)
            yield offset, order
            offset += 1 << order

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_available(self) -> int:
        return self._num_free

    def free_blocks(self) -> Iterable[int]:
        for order, chunks in enumerate(self._chunks):
            for offset in chunks:
                yield from range(offset + 1, offset + 1 + (1 << order))

    def most_chunks(self, size: int) -> int:
        """How many chunks of `size` blocks, a power of two, an empty pool holds."""
        return sum((1 << order) // size for _, order in self._arena())

    def has_room(self, size: int, count: int = 1) -> bool:
        """Whether `count` chunks of `size` blocks, a power of two, are free."""
        first = size.bit_length() - 1
        return sum(len(chunks) << i for i, chunks in enumerate(self._chunks[first:])) >= count

    def acquire(self, count: int, account: Account) -> list[int]:
        """Take one chunk of `count` blocks, adjacent and in ascending order, charged to `account`.

        Raises:
            InvariantError: If `count` is no power of two, or no such chunk is free; callers ask `has_room` first.
        """
        order = count.bit_length() - 1
        if count < 1 or count != 1 << order:
            raise InvariantError([f"a chunk of {count} blocks was taken, which is no power of two"])
        found = next((i for i in range(order, self._top + 1) if self._chunks[i]), None)
        if found is None:
            raise InvariantError([f"a chunk of {count} blocks was taken and none is free"])
        offset, _ = self._chunks[found].popitem()
        while found > order:
            found -= 1
            self._chunks[found][offset + (1 << found)] = None
        self._num_free -= count
        first, end = offset + 1, offset + 1 + count
        self.ref_count[first:end] = [1] * count
        self.owner[first:end] = [account] * count
        self.since_s[first:end] = [self.now_s] * count
        account.num_held_blocks += count
        return list(range(first, end))

    def release(self, block_ids: list[int]) -> int:
        if not self._is_whole_chunk(block_ids):
            return super().release(block_ids)
        first, count = block_ids[0], len(block_ids)
        account = self.owner[first]
        assert account is not None
        self.ref_count[first : first + count] = [0] * count
        self.owner[first : first + count] = [None] * count
        self.since_s[first : first + count] = [self.now_s] * count
        account.num_held_blocks -= count
        self._put_chunk(first - 1, count.bit_length() - 1)
        if self.erases:
            self.freed += reversed(block_ids)
        return count

    def _is_whole_chunk(self, block_ids: list[int]) -> bool:
        """Whether these blocks are one chunk of one owner that nobody else holds: then they are returned at once."""
        count = len(block_ids)
        if not block_ids or count & (count - 1) or (block_ids[0] - 1) % count:
            return False
        first, end = block_ids[0], block_ids[0] + count
        owner = self.owner[first]
        return (
            owner is not None
            and block_ids == list(range(first, end))
            and self.ref_count[first:end] == [1] * count
            and self.owner[first:end].count(owner) == count
        )

    def _put_free(self, block_id: int) -> None:
        self.owner[block_id] = None
        self._put_chunk(block_id - 1, 0)
        if self.erases:
            self.freed.append(block_id)

    def _put_chunk(self, offset: int, order: int) -> None:
        """A chunk is free, and one with its buddy if that is free too."""
        self._num_free += 1 << order
        while order < self._top and (buddy := offset ^ (1 << order)) in self._chunks[order]:
            del self._chunks[order][buddy]
            offset = min(offset, buddy)
            order += 1
        self._chunks[order][offset] = None

    def _free_all_but(self, used: set[int]) -> list[int]:
        self._chunks = [{} for _ in self._chunks]
        self._num_free = 0
        free = [block_id for block_id in range(self.num_blocks, 0, -1) if block_id not in used]
        for block_id in free:
            self._put_chunk(block_id - 1, 0)
        return free

    def take_freed(self) -> list[int]:
        # Between two plans a beam's chunk may be freed, be kept for beams to come, and be freed again.
        return list(dict.fromkeys(super().take_freed()))

    def damage(self) -> Iterator[str]:
        """Free buddies are one chunk, and chunks lie where their size says."""
        for order, chunks in enumerate(self._chunks):
            for offset in chunks:
                if offset % (1 << order):
                    yield f"the free chunk of {1 << order} blocks at block {offset + 1} is out of line"
                if order < self._top and offset ^ (1 << order) in chunks:
                    yield f"the free chunk of {1 << order} blocks at block {offset + 1} lies beside its free buddy"
        num_free = sum(len(chunks) << order for order, chunks in enumerate(self._chunks))
        if num_free != self._num_free:
            yield f"{self._num_free} blocks count as free, and free chunks hold {num_free}"
