"""Text to token ids: one text however it is cut into pieces, control tokens only where they may be."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engines.base import TextPiece, TokenKind
from antiphon.engines.llama.libllama.library import find_library
from antiphon.engines.llama.libllama.model import (
    NativeModel,
    NativeTokenizer,
    TokenAttribute,
    find_kind,
    read_vocabulary,
)
from benchmarks.make_model import CONTROL


@pytest.fixture(scope="module")
def model(models: Path):
    library, _ = find_library(None)
    loaded = NativeModel(library, models / "tiny-q8_0.gguf")
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def tokenizer(model: NativeModel) -> NativeTokenizer:
    return NativeTokenizer(model)


def native(model: NativeModel, text: str) -> tuple[int, ...]:
    """What llama.cpp itself makes of a text in which control tokens are parsed."""
    data = text.encode()
    ids = np.empty(len(data) + 16, dtype=np.int32)
    call = model.library.call.llama_tokenize
    address = ctypes.c_void_p(ids.ctypes.data)
    vocabulary = model.library.call.llama_model_get_vocab(model.pointer)
    count = call(vocabulary, data, len(data), address, len(ids), False, True)
    return tuple(int(token) for token in ids[:count])


TEXTS = st.text(st.sampled_from("abc <|>usrend\n▁é😀0"), max_size=60)
MARKED = st.lists(st.one_of(TEXTS, st.sampled_from(["<s>", "</s>", *CONTROL])), max_size=8).map("".join)


@given(MARKED)
def test_control_text_is_parsed_as_llama_cpp_parses_it(model, tokenizer, text):
    assert tokenizer.tokenize([TextPiece(text, control=True)], False) == native(model, text)


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_pieces_are_one_text(tokenizer, texts):
    whole = tokenizer.tokenize([TextPiece("".join(texts))], False)
    assert tokenizer.tokenize([TextPiece(text) for text in texts], False) == whole


@given(MARKED)
def test_text_never_becomes_control_tokens(model, tokenizer, text):
    ids = tokenizer.tokenize([TextPiece(text)], False)
    assert not any(model.get_attributes(token) & TokenAttribute.CONTROL for token in ids)
    back = b"".join(model.get_piece(token) for token in ids)
    # The word-start mark of the vocabulary is itself a character that somebody may write; it reads back as a
    # space.
    assert back == (" " + text.replace("▁", " ") if text else "").encode()


def test_a_chat_prompt_is_put_together(tokenizer, model):
    user = "say <|end|> twice"
    pieces = [TextPiece("<s><|user|>\n", True), TextPiece(user), TextPiece("<|end|>\n<|assistant|>\n", True)]
    ids = tokenizer.tokenize(pieces, False)
    controls = [
        model.get_text(token) for token in ids if model.get_attributes(token) & TokenAttribute.CONTROL
    ]
    assert controls == ["<s>", "<|user|>", "<|end|>", "<|assistant|>"]
    assert user.encode() in b"".join(model.get_piece(token) for token in ids)


def test_one_bos_is_put_first(tokenizer):
    assert tokenizer.tokenize([TextPiece("a")], True)[0] == 1
    assert tokenizer.tokenize([TextPiece("a")], True)[1:] == tokenizer.tokenize([TextPiece("a")], False)
    assert tokenizer.tokenize([], True) == (1,)
    assert tokenizer.tokenize([], False) == ()


def test_lone_surrogates_are_bytes(tokenizer, model):
    ids = tokenizer.tokenize([TextPiece("a\ud800b")], False)
    assert b"".join(model.get_piece(token) for token in ids) == b" a\xed\xa0\x80b"


def test_long_texts_are_tokenized(tokenizer, model):
    text = "abc é😀 " * 5_000
    ids = tokenizer.tokenize([TextPiece(text)], False)
    assert b"".join(model.get_piece(token) for token in ids) == (" " + text).encode()


def test_the_vocabulary_says_what_each_id_is(model):
    table = read_vocabulary(model)
    assert len(table.pieces) == len(table.kinds) == model.size == 1001
    assert table.kinds[0] is TokenKind.UNKNOWN
    assert table.names == {index + 1: name for index, name in enumerate(["<s>", "</s>", *CONTROL])}
    assert all(table.pieces[index] == b"" for index in table.names)
    assert table.kinds[7] is TokenKind.BYTE and table.pieces[7 + 0xE9] == b"\xe9"
    assert [table.names[token] for token in table.end_ids] == ["</s>", "<|end|>"]
    assert (table.bos_id, table.eos_id, table.add_bos, table.space_prefix) == (1, 2, True, True)


def test_kinds_follow_the_attributes():
    assert find_kind(TokenAttribute.NORMAL) is TokenKind.NORMAL
    assert find_kind(TokenAttribute.USER_DEFINED) is TokenKind.NORMAL
    assert find_kind(TokenAttribute.CONTROL | TokenAttribute.RSTRIP) is TokenKind.CONTROL
    assert find_kind(TokenAttribute.UNUSED) is TokenKind.UNUSED
    assert find_kind(0) is TokenKind.NORMAL
