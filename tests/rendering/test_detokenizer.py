"""Text comes in whole characters, and is the same however the tokens cut it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engines.base import TokenKind, Vocabulary
from antiphon.rendering.detokenizer import Detokenizer, Pieces
from antiphon_testing import build_vocabulary
from antiphon_testing.toy_model import ToyTokenizer


def vocabulary_of(pieces):
    return Vocabulary(tuple(pieces), (TokenKind.NORMAL,) * len(pieces), {}, (0,))


def streamed(vocabulary, tokens):
    detokenizer = Detokenizer(Pieces(vocabulary.pieces))
    return [detokenizer.add(token) for token in tokens], detokenizer.end()


def cut(data, cuts):
    edges = [0, *sorted({place % (len(data) + 1) for place in cuts}), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


DATA = st.one_of(st.text(max_size=30).map(str.encode), st.binary(max_size=30))


@given(data=DATA, cuts=st.lists(st.integers(0, 100), max_size=20))
def test_any_split_of_any_bytes_is_the_whole(data, cuts):
    vocabulary = vocabulary_of(cut(data, cuts))
    tokens = range(len(vocabulary.pieces))
    parts, rest = streamed(vocabulary, tokens)
    assert "".join(parts) + rest == data.decode(errors="replace") == Pieces(vocabulary.pieces).text(tokens)


@given(text=st.text(max_size=30), cuts=st.lists(st.integers(0, 100), max_size=20))
def test_no_part_holds_a_piece_of_a_character(text, cuts):
    vocabulary = vocabulary_of(cut(text.encode(), cuts))
    parts, rest = streamed(vocabulary, range(len(vocabulary.pieces)))
    assert rest == ""
    assert "".join(parts) == text
    arrived = b""
    for index, piece in enumerate(vocabulary.pieces):
        arrived += piece
        # All that is certain is shown, and nothing else: only the beginning of one character may be missing.
        missing = arrived.removeprefix("".join(parts[: index + 1]).encode())
        assert len(missing) < 4
        assert not missing or missing.decode(errors="ignore") == ""


def test_a_character_appears_with_its_last_byte():
    vocabulary = vocabulary_of([b"a\xf0", b"\x9f", b"\x98", b"\x80b"])
    assert streamed(vocabulary, range(4)) == (["a", "", "", "😀b"], "")


@pytest.mark.parametrize("last", [b"\xf0", b"\xf0\x9f", b"\xf0\x9f\x98"])
def test_bytes_cut_at_the_end_become_one_replacement(last):
    vocabulary = vocabulary_of([b"a", *(bytes((byte,)) for byte in last)])
    tokens = range(len(vocabulary.pieces))
    parts, rest = streamed(vocabulary, tokens)
    assert "".join(parts) + rest == Pieces(vocabulary.pieces).text(tokens) == "a\ufffd"


def test_control_tokens_show_as_nothing_even_within_a_character():
    vocabulary = build_vocabulary()
    first, second = ToyTokenizer(vocabulary).encode_plain("😀")
    control = next(iter(vocabulary.names))
    assert streamed(vocabulary, [control, first, control, second, control]) == (["", "", "", "😀", ""], "")


def test_a_leading_space_is_kept():
    vocabulary = build_vocabulary()
    assert streamed(vocabulary, ToyTokenizer(vocabulary).encode_plain(" the cat"))[0] == [" the", " cat"]
