"""Chunks lose no text, are never too large, and overlap by no more than asked."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.errors import InvalidValue
from antiphon.retrieval.base import SizeUnit
from antiphon.retrieval.ingest.documents import DocumentFormat, ExtractedDocument, ExtractedPage
from antiphon.retrieval.ingest.split import LARGEST_SIZE, SMALLEST_WINDOW, DocumentChunk, SplitOptions, split

WORDS = (
    "lorem ipsum dolor amet 漢字 仮名 ärger 👩‍👩‍👧 https://a.b/c?d=e ... # ## - 1. > | ``` --- \\ <p>".split()
)
GAPS = (" ", " ", " ", "\n", "\n\n", ". ", "", "\t", "\n\n\n    ", "。")
TEXTS = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(GAPS)), min_size=1, max_size=400).map(
    lambda pairs: "".join(word + gap for word, gap in pairs)
)


def document(*texts: str, markdown: bool = True) -> ExtractedDocument:
    pages = tuple(ExtractedPage(text, number) for number, text in enumerate(texts, 1))
    return ExtractedDocument("a.md", DocumentFormat.MARKDOWN, pages, markdown=markdown)


def count_tokens(texts: Sequence[str]) -> list[int]:
    """Three bytes to a token: CJK has more tokens a character than English, and an emoji several."""
    return [(len(text.encode()) + 2) // 3 for text in texts]


def find_spans(chunks: list[DocumentChunk]) -> list[tuple[int, int]]:
    return [(chunk.start, chunk.start + len(chunk.text)) for chunk in chunks]


def overlaps(chunks: list[DocumentChunk]) -> list[int]:
    """The characters that each chunk repeats of the one before; negative where spaces are between them."""
    return [one[1] - two[0] for one, two in pairwise(find_spans(chunks))]


def lost(text: str, chunks: list[DocumentChunk]) -> str:
    """The characters of a text that are in no chunk, without spaces."""
    covered = bytearray(len(text))
    assert all(chunk.text == text[chunk.start :][: len(chunk.text)] for chunk in chunks)
    for start, end in find_spans(chunks):
        covered[start:end] = b"\1" * (end - start)
    return "".join(letter for letter, seen in zip(text, covered, strict=True) if not seen).strip()


@given(TEXTS, st.integers(16, 400), st.integers(0, 15), st.booleans())
@example("lorem\n\n\n    漢字\nlorem ", 16, 2, True)  # the library repeats the four spaces, too
def test_chunks_of_characters_hold_their_promises(text, size, sixteenths, markdown):
    overlap = size * sixteenths // 16
    made = list(split(document(text, markdown=markdown), SplitOptions(size, overlap)))
    assert max((len(chunk.text) for chunk in made), default=0) <= size
    assert lost(text, made) == ""
    assert max(overlaps(made), default=0) <= overlap


@given(TEXTS, st.integers(16, 100), st.integers(0, 15), st.booleans())
def test_chunks_of_tokens_hold_their_promises(text, size, overlap, markdown):
    options = SplitOptions(size, overlap, SizeUnit.TOKENS)
    made = list(split(document(text, markdown=markdown), options, count_tokens))
    assert max(count_tokens([chunk.text for chunk in made]), default=0) <= size
    assert lost(text, made) == ""
    assert made == list(split(document(text, markdown=markdown), options, count_tokens))


@pytest.mark.parametrize("markdown", [True, False])
@pytest.mark.parametrize(
    "text", ["a" * 30_000, "漢" * 30_000, "\n" * 30_000 + "x" + " " * 30_000, "👩‍👩‍👧" * 5_000]
)
def test_texts_without_breaks_are_split_too(text, markdown):
    made = list(split(document(text, markdown=markdown), SplitOptions(500, 50)))
    assert lost(text, made) == "" and max(len(chunk.text) for chunk in made) <= 500


def test_windows_leave_no_seam():
    sentence = "The quick brown fox number {} jumps over the lazy dog. "
    text = "".join(sentence.format(number) for number in range(4_000))
    assert len(text) > 20 * SMALLEST_WINDOW
    made = list(split(document(text, markdown=False), SplitOptions(1_000, 200)))
    assert all(chunk.text.startswith("The quick") and chunk.text.endswith(".") for chunk in made)
    assert all(100 < overlap <= 200 for overlap in overlaps(made))
    assert all(len(chunk.text) > 900 for chunk in made[:-1])


def test_tokens_are_counted_about_once():
    text = "".join(f"Sentence {number} of a long English text. " for number in range(5_000))
    counted = 0

    def count(texts: Sequence[str]) -> list[int]:
        nonlocal counted
        counted += sum(map(len, texts))
        return count_tokens(texts)

    made = list(split(document(text, markdown=False), SplitOptions(250, 0, SizeUnit.TOKENS), count))
    assert counted < 1.2 * len(text)
    assert sum(count_tokens([chunk.text for chunk in made])) / len(made) > 0.75 * 250


def test_a_chunk_keeps_page_title_and_file():
    first = "# Guide\n\n" + "intro. " * 20 + "\n\n## Install\n\n" + "step. " * 20
    plain = ExtractedPage("only words here", 2, "Sheet 1")
    read = ExtractedDocument(
        "a.docx", DocumentFormat.DOCX, (ExtractedPage(first, 1), plain, ExtractedPage("x", 3)), "Manual", True
    )
    made = list(split(read, SplitOptions(150)))
    assert {(chunk.page, chunk.title, chunk.file_name) for chunk in made} == {
        (1, "Guide", "a.docx"),
        (1, "Guide > Install", "a.docx"),
        (2, "Sheet 1", "a.docx"),
        (3, "Manual", "a.docx"),
    }
    assert made[0].text.startswith("# Guide")


@pytest.mark.parametrize(
    ("size", "overlap", "unit", "field"),
    [
        (15, 0, SizeUnit.CHARACTERS, "chunk_size"),
        (LARGEST_SIZE + 1, 0, SizeUnit.CHARACTERS, "chunk_size"),
        (100, 100, SizeUnit.CHARACTERS, "chunk_overlap"),
        (100, -1, SizeUnit.TOKENS, "chunk_overlap"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(size, overlap, unit, field):
    with pytest.raises(InvalidValue, match=field) as raised:
        SplitOptions(size, overlap, unit)
    assert raised.value.param == field


def test_chunks_of_tokens_have_a_limit_in_characters():
    options = SplitOptions(LARGEST_SIZE, 0, SizeUnit.TOKENS)
    made = list(split(document("word " * 40_000), options, lambda texts: [1 for _ in texts]))
    assert max(len(chunk.text) for chunk in made) <= LARGEST_SIZE


def test_a_character_larger_than_a_chunk_is_refused():
    with pytest.raises(InvalidValue, match="'漢' alone has more than 16 tokens"):
        list(
            split(
                document("漢字"),
                SplitOptions(16, 0, SizeUnit.TOKENS),
                lambda texts: [17 * len(each) for each in texts],
            )
        )
