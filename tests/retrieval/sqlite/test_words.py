"""Words of texts and queries, above all where no spaces are between them."""

import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.retrieval.ranking import LONGEST_QUERY, MOST_WORDS, QueryWord, list_words, segment
from antiphon.retrieval.sqlite.schema import name_document
from antiphon.retrieval.sqlite.search import build_match

LETTERS = st.text(st.characters(codec="utf-8"), max_size=60)
CJK_TEXT = st.text(
    st.sampled_from("東京都の猫が好きですカタカナ漢字한국어서울abc 12、。"), min_size=1, max_size=30
)


@pytest.fixture(scope="module")
def words() -> Iterator[sqlite3.Connection]:
    """A full-text index as a table has it, with a function that reads the terms of a text."""
    connection = sqlite3.connect(":memory:")
    connection.execute(
        "CREATE VIRTUAL TABLE words USING fts5 (title, body, doc, tokenize = 'unicode61 remove_diacritics 2')"
    )
    connection.execute("CREATE VIRTUAL TABLE terms USING fts5vocab (words, 'row')")
    yield connection
    connection.close()


def matches(words: sqlite3.Connection, text: str, query: str) -> bool:
    """Whether a query finds a chunk of that text."""
    words.execute("DELETE FROM words")
    words.execute("INSERT INTO words VALUES ('', ?, 'd7')", (segment(text),))
    found = list_words(query)
    return bool(found) and bool(
        words.execute("SELECT 1 FROM words WHERE words MATCH ?", (build_match(found, []),)).fetchall()
    )


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Crème BRÛLÉE", "creme"),
        ("naïve", "NAÏVE"),
        ("東京都は日本の首都です", "首都"),
        ("東京都は日本の首都です", "東京の天気"),
        ("私は猫が好き", "猫"),
        ("机の上に本", "本"),
        ("カタカナ", "カタ"),
        ("ｶﾀｶﾅ", "カタカナ"),
        ("ＡＢＣ１２３", "abc123"),
        ("iPhone手机很贵", "手机"),
        ("iPhone手机很贵", "iphone"),
        ("서울에서 만나요", "서울"),
        ("人工智能改变世界", "智能"),
        ("ὉΔΌΣ", "οδος"),
        ("Straße", "STRASSE"),
        ("İstanbul", "istanbul"),
        ("हिन्दी भाषा", "हिन्दी"),
        ("snake_case", "case"),
        ("C++ and C#", "C"),
        ("e-mail@example.com", "example"),
        ("ﬁnance", "finance"),
        ("𠮷野家", "𠮷野"),
    ],
)
def test_a_word_finds_its_text(words: sqlite3.Connection, text: str, query: str) -> None:
    assert matches(words, text, query)


@pytest.mark.parametrize(
    ("text", "query"),
    [("東京都", "京東"), ("東京", "大阪"), ("apple", "app"), ("one", "two"), ("猫が好き", "犬")],
)
def test_another_word_does_not(words: sqlite3.Connection, text: str, query: str) -> None:
    assert not matches(words, text, query)


@pytest.mark.parametrize(
    "query", ["", " ", '"', "*", "a AND", "NEAR(", '" OR "', "title:x", "-", "^", "{", "\0", "()"]
)
def test_operators_of_the_index_are_only_text(words: sqlite3.Connection, query: str) -> None:
    matches(words, "some text", query)  # it raises no error
    assert matches(words, "some text", f"{query} text")


@given(text=LETTERS, query=LETTERS)
def test_no_query_is_a_fault(words: sqlite3.Connection, text: str, query: str) -> None:
    matches(words, text, query)


@given(text=CJK_TEXT, start=st.integers(0, 29), length=st.integers(1, 6))
def test_every_part_of_a_cjk_text_finds_it(
    words: sqlite3.Connection, text: str, start: int, length: int
) -> None:
    part = text[start : start + length]
    if not part.isascii() and all(word.isalpha() and not word.isascii() for word in part):
        assert matches(words, text, part)


@given(st.text(st.sampled_from("aÄÉéßΣςİıåÅñЙйƒ東京都猫カ가나12Ὁﬁ"), min_size=1, max_size=8))
def test_a_word_is_a_term_of_the_index(words: sqlite3.Connection, text: str) -> None:
    """Else its chunks would be counted wrongly."""
    words.execute("DELETE FROM words")
    words.execute("INSERT INTO words VALUES ('', ?, '')", (segment(text),))
    terms = {term for (term,) in words.execute("SELECT term FROM terms")}
    for word in list_words(text):
        assert any(term.startswith(word.text) if word.is_prefix else term == word.text for term in terms)


def test_words_of_a_query_are_bounded() -> None:
    assert len(list_words(" ".join(f"w{number}" for number in range(10_000)))) == MOST_WORDS
    assert list_words("x " * LONGEST_QUERY + "beyond") == [QueryWord("x")]
    assert list_words("東京 東京 都") == [QueryWord("東京"), QueryWord("都", is_prefix=True)]


def test_a_filter_finds_documents_only(words: sqlite3.Connection) -> None:
    words.execute("DELETE FROM words")
    for number in (1, 2, 12):
        words.execute(
            "INSERT INTO words (rowid, body, doc) VALUES (?, 'apple d1', ?)", (number, name_document(number))
        )
    match = build_match(list_words("apple"), [1, 12])
    rows = words.execute("SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid", (match,))
    assert rows.fetchall() == [(1,), (12,)]
