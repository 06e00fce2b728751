"""The index by itself: chains, tails, windows, and chains that begin under the public scope."""

from __future__ import annotations

from octavo.core.block_keys import ModelFingerprint
from octavo.core.prefix_index import Content, Lineage, Match, PrefixIndex, is_same
from octavo.messages import PUBLIC_TENANT
from support.core_scripts import spec

MODEL = ModelFingerprint(weights="", kv_dtype="", block_size=2, layout_version=1, kernel_path="")


class Books:
    """An index, and blocks handed out in order for what is committed to it."""

    def __init__(self, windows: tuple[int | None, ...] = (None,)) -> None:
        self.index = PrefixIndex(spec(2, windows), MODEL, bytes(16))
        self.num_blocks = 0

    def commit(self, lineage: Lineage, tokens: list[int]) -> list[Content]:
        """Commit whole columns, and seal what is left."""
        done = []
        for start in range(0, len(tokens), 2):
            part = tokens[start : start + 2]
            content = self.index.commit(lineage, part) if len(part) == 2 else self.index.seal(lineage, part)
            for group in range(len(content.blocks)):
                self.num_blocks += 1
                content.blocks[group] = self.num_blocks
            done.append(content)
        return done

    def open(self, tenant: str = "red", salt: str | None = None) -> Lineage:
        return self.index.open(tenant, None, salt)

    def found(self, tokens: list[int], tenant: str = "red", salt: str | None = None) -> int:
        return self.index.match(self.open(tenant, salt), tokens, len(tokens)).num_tokens(2)


def test_a_chain_is_found_to_its_end_and_from_its_beginning_only() -> None:
    books = Books()
    contents = books.commit(books.open(), [1, 2, 3, 4, 5])
    match = books.index.match(books.open(), [1, 2, 3, 4, 5, 6], 6)
    assert match == Match(contents[:2], contents[2], 1)
    assert books.found([1, 2, 3, 9]) == 3 and books.found([3, 4, 5]) == 0 and books.found([]) == 0
    assert books.found([1, 2, 3, 4], "blue") == books.found([1, 2, 3, 4], salt="s") == 0
    assert books.index.match(books.open(), [1, 2, 3, 4, 5, 6], 3).num_tokens(2) == 3, "no more than asked for"


def test_what_no_block_holds_is_not_there() -> None:
    books = Books((None, None))
    first, second = books.commit(books.open(), [1, 2, 3, 4])
    books.index.forget(second, second.blocks[1])
    assert books.found([1, 2, 3, 4]) == 2, "where one group lacks it, the other alone is no use"
    books.index.forget(second, second.blocks[0])
    assert len(books.index) == 1 and books.found([1, 2, 3, 4]) == 2
    books.index.remove(second)
    books.index.remove(second)
    assert books.index.find(first.key) is first and books.index.find(second.key) is None


def test_of_two_ends_the_one_that_agrees_longer_is_copied() -> None:
    books = Books()
    lineage = books.open()
    books.commit(lineage, [1, 2])
    short, long = books.index.seal(lineage, [3]), books.index.seal(lineage, [3, 4])
    short.blocks[0], long.blocks[0] = 8, 9
    assert books.index.match(books.open(), [1, 2, 3, 4, 5], 4).contents[1:] == [long]
    assert books.index.match(books.open(), [1, 2, 3, 5], 4).tail is short


def test_a_window_wants_its_last_columns_only() -> None:
    books = Books((None, 3))
    contents = books.commit(books.open(), [1, 2, 3, 4, 5, 6])
    books.index.forget(contents[0], contents[0].blocks[1])
    assert books.found([1, 2, 3, 4, 5, 6, 7]) == 6
    books.index.forget(contents[1], contents[1].blocks[1])
    assert books.found([1, 2, 3, 4, 5, 6, 7]) == 6, "token 6 reads tokens 4 to 6"
    assert books.found([1, 2, 3, 4, 5]) == 0, "token 4 reads tokens 2 to 4, token 2 reads 0 to 2"


def test_public_columns_come_first_and_what_follows_is_the_tenants() -> None:
    books = Books()
    public = books.commit(books.open(PUBLIC_TENANT), [1, 2, 3, 4])
    assert books.found([1, 2, 3, 4]) == 0, "nothing is published"
    books.index.num_published = 1
    lineage = books.open()
    match = books.index.match(lineage, [1, 2, 3, 4, 5, 6], 6)
    assert match.contents == public and lineage.public == public
    books.index.begin(lineage, match.contents)
    own = books.commit(lineage, [5, 6])
    assert books.found([1, 2, 3, 4, 5, 6]) == 6 and books.found([1, 2, 3, 4, 5, 6], "blue") == 4
    assert own[0].parent is lineage.root and is_same(lineage.root.parent, public[1])
    assert books.index.match(books.open(), [1, 2, 3], 3) == Match(public[:1], public[1], 1)


def test_who_takes_less_than_is_public_goes_on_from_there() -> None:
    books = Books()
    public = books.commit(books.open(PUBLIC_TENANT), [1, 2, 3, 4])
    books.index.num_published = 1
    for taken in (1, 0):
        lineage = books.open()
        books.index.match(lineage, [1, 2, 3, 4, 5, 6], 6)
        keys = [books.index.key_of(lineage, 2, [1, 2, 3, 4, 5, 6])]
        books.index.begin(lineage, public[:taken])
        assert lineage.public == public[:taken]
        own = [books.index.commit(lineage, part) for part in ([1, 2], [3, 4], [5, 6])[taken:]]
        assert {content.key for content in own}.isdisjoint([*keys, *(content.key for content in public)])
        assert is_same(own[0].parent, lineage.root) and len(lineage.contents) == 3


def test_after_the_withdrawal_a_chain_begins_under_its_own_scope() -> None:
    books = Books()
    public = books.commit(books.open(PUBLIC_TENANT), [1, 2, 3, 4])
    books.index.num_published = 1
    lineage = books.open()
    books.index.match(lineage, [1, 2, 3, 4, 5], 4)
    books.index.num_published = 0
    for content in public:
        books.index.forget(content, content.blocks[0])
    assert books.index.match(lineage, [1, 2, 3, 4, 5], 4).num_tokens(2) == 0
    assert lineage.public == [] and lineage.root is lineage.scope_root
    assert books.commit(lineage, [1, 2])[0].parent is lineage.scope_root


def test_a_fork_goes_on_by_itself() -> None:
    books = Books()
    lineage = books.open()
    books.commit(lineage, [1, 2])
    twin = lineage.fork()
    books.commit(lineage, [3, 4])
    books.commit(twin, [5, 6])
    assert books.found([1, 2, 3, 4]) == books.found([1, 2, 5, 6]) == 4
    lineage.forget_contents()
    assert len(twin.contents) == 2


def test_contents_are_the_same_when_all_before_them_is() -> None:
    books = Books()
    a, b = books.commit(books.open(), [1, 2, 3, 4])[1], books.commit(books.open(), [1, 2, 3, 4])[1]
    other = Content(a.key, books.commit(books.open("blue"), [1, 2])[0], a.tokens, 1, 2)
    assert is_same(a, b) and not is_same(a, other) and not is_same(a, None) and is_same(None, None)


def lose(content: Content, books: Books, *groups: int) -> None:
    """Evict a content's blocks of some groups."""
    for group in groups:
        books.index.forget(content, content.blocks[group])


def test_a_chain_of_windows_is_found_though_its_beginning_is_in_no_block() -> None:
    books = Books((3, 5))
    text = list(range(1, 13))
    contents = books.commit(books.open(), text)
    for content in contents[:3]:
        lose(content, books, 0, 1)
    assert len(books.index) == 3 and books.index.find(contents[0].key) is None
    assert books.found([*text, 13]) == 12
    match = books.index.match(books.open(), text, 11)
    assert (match.num_tokens(2), match.contents, match.tail) == (11, contents[:5], contents[5])
    assert books.found(text[:10]) == 10, "token 10 reads 6 .. 9"
    assert books.found(text[:8]) == 0, "token 8 reads 4 .. 7, and 4 and 5 are gone"
    assert books.found([99, *text[1:]]) == 0 and books.found([*text[:4], 99, *text[5:]]) == 0
    lineage = books.open()
    books.index.begin(lineage, books.index.match(lineage, text, 12).contents)
    longer = books.index.commit(lineage, [13, 14])
    assert longer.parent is contents[5]


def test_a_chain_goes_on_though_what_is_computed_again_has_the_keys_of_what_was_lost() -> None:
    books = Books((3,))
    text = list(range(1, 9))
    old = books.commit(books.open(), text)
    for content in old[:2]:
        lose(content, books, 0)
    new = books.commit(books.open(), text[:4])
    assert [a.key for a in new] == [a.key for a in old[:2]] and new[0] is not old[0]
    match = books.index.match(books.open(), text, 8)
    assert match.num_tokens(2) == 8 and match.contents[:2] == new and match.contents[2:] == old[2:]


def test_a_hit_needs_of_each_group_what_its_next_token_reads() -> None:
    """Windows of 3 and 5 beside full attention, each in two groups, and every way to lose one block of one group."""
    windows = (3, None, 5, 3, None, 5)
    text = list(range(1, 17))
    for group, window in enumerate(windows):
        for lost in range(8):
            books = Books(windows)
            contents = books.commit(books.open(), text)
            lose(contents[lost], books, group)
            for wanted in range(1, 17):
                whole = [
                    p
                    for p in range(wanted + 1)
                    if not (0 if window is None else max(0, p - window + 1)) // 2 <= lost < -(-p // 2)
                ]
                assert books.found(text[:wanted]) == max(whole), (group, lost, wanted)


def test_a_published_chain_of_windows_is_found_without_its_beginning() -> None:
    books = Books((3,))
    text = list(range(1, 9))
    contents = books.commit(books.open(PUBLIC_TENANT), text)
    books.index.num_published = 1
    for content in contents[:2]:
        lose(content, books, 0)
    match = books.index.match(books.open("blue"), [*text, 9], 9)
    assert match.contents == contents and match.num_tokens(2) == 8
