"""Finds computed KV by what it was computed from.

Content is a chain: each block's key names its tokens and, through the parent's key, everything before them
(`block_keys`). The index maps keys to blocks and, for prompts that leave a block midway, (parent key, first token) to
the few blocks that begin so. A key alone is never trusted: tokens and chain are compared on every hit, so two contents
with one key could not be mixed up.

What a hit needs. To go on at position p, a group without a window needs the blocks of all tokens before p, and a group
with a window those of the last `window - 1`. Every group must have what it needs: blocks are evicted one by one, so a
content may be in some groups and not in others. What a group does not need may be evicted, or never have been kept:
where all layers have windows, whole columns of a chain may be in no block, and what comes after them is found by its
key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

from octavo.core.block_keys import ModelFingerprint, Scope, block_key, root_key
from octavo.core.kv_spec import KVSpec
from octavo.messages import PUBLIC_TENANT

MAX_CHILDREN = 8
"""Blocks remembered per (parent key, first token); the oldest is forgotten."""

NO_BLOCK = 0


class Content:
    """What one column of a sequence holds, and the blocks in which it can be found.

    A root has no parent and no block; its `tokens` are the scope's names, so that roots too are compared, not trusted.
    """

    __slots__ = ("blocks", "depth", "key", "num_hits", "parent", "tokens")

    def __init__(
        self, key: bytes, parent: Content | None, tokens: tuple[object, ...], num_groups: int, depth: int
    ) -> None:
        self.key = key
        self.parent = parent
        self.tokens = tokens
        self.blocks = [NO_BLOCK] * num_groups
        """Per group, the block that holds it; `NO_BLOCK` where none does."""
        self.depth = depth
        """Tokens before it."""
        self.num_hits = 0


def is_same(a: Content | None, b: Content | None) -> bool:
    """Whether two chains hold the same, compared token by token as far as they are not one object."""
    while a is not b:
        if a is None or b is None or a.key != b.key or a.tokens != b.tokens:
            return False
        a, b = a.parent, b.parent
    return True


class Lineage:
    """Where a sequence's chain begins, and how much of it is known."""

    __slots__ = ("contents", "keys", "public", "root", "scope_root", "secret")

    def __init__(self, scope_root: Content, secret: bytes) -> None:
        self.scope_root = scope_root
        self.root = scope_root
        """Parent of the first column that is not public."""
        self.secret = secret
        self.public: list[Content] = []
        """Leading columns that are published."""
        self.keys: list[bytes] = []
        """Keys of the whole columns after the public ones, as far as anybody asked."""
        self.contents: list[Content] = []
        """Of the leading columns, those that were hit or committed."""

    def fork(self) -> Lineage:
        twin = Lineage(self.scope_root, self.secret)
        twin.root, twin.public = self.root, self.public
        twin.keys, twin.contents = self.keys.copy(), self.contents.copy()
        return twin

    def forget_contents(self) -> None:
        """The sequence gave its blocks back."""
        self.contents = []


class Match(NamedTuple):
    """The longest prefix of a sequence that is there already."""

    contents: list[Content]
    """Whole columns, to be shared by reference."""
    tail: Content | None
    """A block to copy: its first `num_tail_tokens` tokens come next."""
    num_tail_tokens: int

    def num_tokens(self, block_size: int) -> int:
        return len(self.contents) * block_size + self.num_tail_tokens


NO_MATCH = Match([], None, 0)


class PrefixIndex:
    """The contents that can be hit.

    Args:
        spec: The model's KV groups and block size.
        fingerprint: What decides the bits of a block besides its tokens.
        secret: At least 16 bytes; each tenant's own secret is derived from it.
    """

    def __init__(self, spec: KVSpec, fingerprint: ModelFingerprint, secret: bytes) -> None:
        self._block_size = spec.block_size
        self._num_groups = spec.num_groups
        self._full_groups = [g for g, group in enumerate(spec.groups) if group.window is None]
        self._windows = spec.windows
        self._fingerprint = fingerprint
        self._secret = secret
        self._by_key: dict[bytes, Content] = {}
        self._children: dict[tuple[bytes, object], list[Content]] = {}
        self._public = self.open(PUBLIC_TENANT, None, None)
        self.num_published = 0
        """Published prefixes. Without one, nobody looks under the public scope."""

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Content]:
        return iter(self._by_key.values())

    def find(self, key: bytes) -> Content | None:
        """The content registered under a key; for audits."""
        return self._by_key.get(key)

    def open(self, tenant: str, adapter: str | None, salt: str | None) -> Lineage:
        """The beginning of a chain: only chains with equal beginnings can meet."""
        secret = blake2b(tenant.encode("utf-8", "surrogatepass"), key=self._secret[:64], digest_size=32).digest()
        scope = Scope(secret=secret, tenant=tenant, adapter=adapter, salt=salt)
        root = Content(root_key(self._fingerprint, scope), None, (tenant, adapter, salt), 0, 0)
        return Lineage(root, secret)

    # ---- looking up

    def match(self, lineage: Lineage, token_ids: Sequence[int], limit: int) -> Match:
        """The longest prefix, of at most `limit` tokens, after which every group has what the next token reads."""
        self._look_under_public(lineage, token_ids, limit)
        contents = self._chain(lineage, token_ids, limit)
        parent = contents[-1] if len(contents) > len(lineage.public) else lineage.root
        tail, num_tail = self._tail(lineage, parent, contents, token_ids, limit)
        return self._within_windows(contents, tail, num_tail)

    def begin(self, lineage: Lineage, contents: list[Content]) -> None:
        """A sequence takes these whole columns, all or some of what was matched, and goes on by itself."""
        if len(contents) < len(lineage.public):
            self._set_public(lineage, contents)
        lineage.contents = list(contents)

    def without_tail(self, match: Match) -> Match:
        """The longest match that copies nothing. It reads from further below, so it may have fewer whole columns."""
        return self._within_windows(list(match.contents), None, 0)

    def key_of(self, lineage: Lineage, column: int, token_ids: Sequence[int]) -> bytes:
        """The key of a whole column that is not public. `token_ids` are the sequence's, from its beginning."""
        size = self._block_size
        keys = lineage.keys
        place = column - len(lineage.public)
        for c in range(column - place + len(keys), column + 1):
            parent = keys[-1] if keys else lineage.root.key
            keys.append(block_key(lineage.secret, parent, token_ids[c * size : (c + 1) * size]))
        return keys[place]

    def _chain(self, lineage: Lineage, token_ids: Sequence[int], limit: int) -> list[Content]:
        """The contents of leading whole columns, the public ones first, as far as groups without a window have them;
        where there is no such group, up to the last column that is in any block."""
        contents = list(lineage.public)
        if not self._by_key:
            return contents
        for column in range(len(contents), limit // self._block_size):
            found = self._by_key.get(self.key_of(lineage, column, token_ids))
            if found is None and not self._full_groups:
                continue
            if found is None or any(found.blocks[g] == NO_BLOCK for g in self._full_groups):
                break
            parent = contents[-1] if len(contents) > len(lineage.public) else lineage.root
            if (missing := self._back_to(parent, found, column + 1 - len(contents), column, token_ids)) is None:
                break
            contents += missing
        return contents

    def _back_to(
        self, parent: Content, found: Content, count: int, column: int, token_ids: Sequence[int]
    ) -> list[Content] | None:
        """The `count` contents that end with what was found for a column. None if they hold other tokens than the
        prompt does there, or do not follow the parent."""
        size = self._block_size
        chain = [found]
        for c in range(column, column - count, -1):
            content = chain[-1]
            if content.parent is None or content.tokens != tuple(token_ids[c * size : (c + 1) * size]):
                return None  # a root has the names of its scope for tokens
            chain.append(content.parent)
        return chain[-2::-1] if is_same(chain[-1], parent) else None

    def _look_under_public(self, lineage: Lineage, token_ids: Sequence[int], limit: int) -> None:
        """Settle which leading columns are published ones; everything after them is keyed under the tenant."""
        if not self.num_published and not lineage.public:
            return
        public = Lineage(self._public.root, self._public.secret)
        adapter = lineage.scope_root.tokens[1]
        may_hit = self.num_published and adapter is None and not is_same(lineage.scope_root, public.root)
        self._set_public(lineage, self._chain(public, token_ids, limit) if may_hit else [])

    def _set_public(self, lineage: Lineage, contents: list[Content]) -> None:
        if len(contents) == len(lineage.public) and all(map(is_same, contents, lineage.public)):
            return
        lineage.public = list(contents)
        lineage.keys = []
        lineage.root = lineage.scope_root
        if contents:
            key = block_key(lineage.secret, lineage.scope_root.key, (), (contents[-1].key,))
            lineage.root = Content(key, contents[-1], lineage.scope_root.tokens, 0, 0)

    def _tail(
        self, lineage: Lineage, parent: Content, contents: list[Content], token_ids: Sequence[int], limit: int
    ) -> tuple[Content | None, int]:
        """The block that agrees longest with what comes after the whole columns."""
        start = len(contents) * self._block_size
        rest = token_ids[start : min(start + self._block_size, limit)]
        if not rest:
            return None, 0
        parents = [parent]
        if contents and len(contents) == len(lineage.public):
            parents.append(contents[-1])  # the published text may go on where `limit` or the prompt leaves it
        best, most = None, 0
        for above in parents:
            for child in self._children.get((above.key, rest[0]), ()):
                if NO_BLOCK not in child.blocks and is_same(child.parent, above):
                    count = _num_equal(child.tokens, rest)
                    if count > most:
                        best, most = child, count
        return best, most

    def _within_windows(self, contents: list[Content], tail: Content | None, num_tail: int) -> Match:
        """Shorten a match until every windowed group has the columns that the next token reads."""
        while (missing := self._missing_column(contents, num_tail)) is not None:
            # Any match that is longer than this column and shorter than what was tried needs it, too.
            del contents[missing:]
            tail, num_tail = None, 0
        return Match(contents, tail, num_tail)

    def _missing_column(self, contents: list[Content], num_tail: int) -> int | None:
        """A column that a group reads after these tokens and does not have."""
        num_tokens = len(contents) * self._block_size + num_tail
        for window, groups in self._windows:
            lowest = max(0, num_tokens - window + 1) // self._block_size
            for column in range(len(contents) - 1, lowest - 1, -1):
                blocks = contents[column].blocks
                if NO_BLOCK in blocks and any(blocks[g] == NO_BLOCK for g in groups):
                    return column
        return None

    # ---- registering

    def commit(self, lineage: Lineage, token_ids: Sequence[int]) -> Content:
        """The content of the next whole column after `lineage.contents`, which holds `token_ids` and is computed."""
        column = len(lineage.contents)
        parent = lineage.contents[-1] if column > len(lineage.public) else lineage.root
        place = column - len(lineage.public)
        if place == len(lineage.keys):
            lineage.keys.append(block_key(lineage.secret, parent.key, token_ids))
        content = self._registered(lineage.keys[place], parent, tuple(token_ids), column * self._block_size)
        lineage.contents.append(content)
        return content

    def seal(self, lineage: Lineage, token_ids: Sequence[int]) -> Content:
        """The content of a partly filled last column, which holds `token_ids` and is written to no more."""
        column = len(lineage.contents)
        parent = lineage.contents[-1] if column > len(lineage.public) else lineage.root
        key = block_key(lineage.secret, parent.key, token_ids)
        return self._registered(key, parent, tuple(token_ids), column * self._block_size)

    def _registered(self, key: bytes, parent: Content, tokens: tuple[int, ...], depth: int) -> Content:
        known = self._by_key.get(key)
        if known is not None and known.tokens == tokens and is_same(known.parent, parent):
            return known
        content = Content(key, parent, tokens, self._num_groups, depth)
        if known is None:
            self._by_key[key] = content
            children = self._children.setdefault((parent.key, tokens[0]), [])
            children.append(content)
            if len(children) > MAX_CHILDREN:
                del children[0]
        return content

    def is_registered(self, content: Content) -> bool:
        """False for a content whose key was taken by another one: it cannot be found."""
        return self._by_key.get(content.key) is content

    def forget(self, content: Content, block_id: int) -> None:
        """A block no longer holds this content; when none does, it cannot be found."""
        content.blocks[content.blocks.index(block_id)] = NO_BLOCK
        if not any(content.blocks):
            self.remove(content)

    def remove(self, content: Content) -> None:
        """Take a content that no block holds out of the index."""
        if content.parent is None or not self.is_registered(content):
            return
        del self._by_key[content.key]
        place = (content.parent.key, content.tokens[0])
        children = self._children.get(place, [])
        if content in children:
            children.remove(content)
        if not children:
            self._children.pop(place, None)


def _num_equal(a: Sequence[object], b: Sequence[object]) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count
