"""The field rag_params: each of its fields, what is refused by name, and what an answer shows of it."""

import json

import msgspec
import pytest

from antiphon.dialects.common.chunks import ChatChunkBuilder, OpenAIStreamEncoder
from antiphon.dialects.common.encode import encode_chat
from antiphon.dialects.fireworks import decode as fireworks
from antiphon.dialects.jamai.decode import decode_chat as decode_jamai
from antiphon.dialects.openai.dialect import decode_chat, decode_text
from antiphon.dialects.services import ResponseMeta
from antiphon.domain.collect import CollectedChoice, CollectedGeneration
from antiphon.domain.events import FinishReason, Started, Usage
from antiphon.domain.retrieval import ReferencedChunk, References, Retrieval, UnknownCitations
from antiphon.errors import InvalidValue, MissingParameter, UnknownParameter, UnsupportedParameter

MESSAGES = [{"role": "user", "content": "hi"}]
DECODERS = [
    pytest.param(decode_chat, id="openai"),
    pytest.param(fireworks.decode_chat, id="fireworks"),
    pytest.param(decode_jamai, id="jamai"),
]
META = ResponseMeta("id", 1, "m")
CHUNK = ReferencedChunk("7", "doc", "red", "Boats", 2, "sea.pdf", 0.5, 0.25, {"kind": "x"})
FOUND = References("sea", "p", "boat", (CHUNK,), ("one did not fit",))


def body(params) -> bytes:
    return json.dumps({"model": "m", "messages": MESSAGES, "rag_params": params}).encode()


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    ("params", "read"),
    [
        ({}, Retrieval("t")),
        ({"search_query": " boats "}, Retrieval("t", "boats")),
        ({"k": 1024}, Retrieval("t", k=1024)),
        ({"reranking_model": "r"}, Retrieval("t", reranker="r")),
        ({"reranking_model": "r", "rerank": False}, Retrieval("t")),
        (
            {"concat_reranker_input": True, "reranking_model": "r"},
            Retrieval("t", reranker="r", ranks_titles=True),
        ),
        ({"inline_citations": False}, Retrieval("t", cites=False)),
    ],
)
def test_each_field_is_read(decode, params, read):
    assert decode(body({"table_id": "t"} | params)).request.retrieval == read


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    ("params", "error", "param"),
    [
        ({"table_id": ""}, MissingParameter, "rag_params.table_id"),
        ({"k": 3}, MissingParameter, "rag_params.table_id"),
        ({"table_id": "t", "k": 0}, InvalidValue, "rag_params.k"),
        ({"table_id": "t", "k": 1025}, InvalidValue, "rag_params.k"),
        ({"table_id": "t", "top": 1}, UnknownParameter, "rag_params.top"),
        (
            {"table_id": "t", "concat_reranker_input": True},
            InvalidValue,
            "rag_params.concat_reranker_input",
        ),
    ],
)
def test_errors_name_the_field(decode, params, error, param):
    with pytest.raises(error) as caught:
        decode(body(params))
    assert caught.value.param == param


def test_a_raw_prompt_refuses_it():
    with pytest.raises(UnsupportedParameter, match="rag_params"):
        decode_text(json.dumps({"model": "m", "prompt": "x", "rag_params": {"table_id": "t"}}).encode())


def test_an_answer_shows_what_was_found():
    call = decode_chat(body({"table_id": "sea"}))
    choice = CollectedChoice(0, "Red [@0; @4].", FinishReason.STOP)
    told = json.loads(
        encode_chat(META, call, CollectedGeneration((choice,), Usage(1, 1), (), (), FOUND, (4,)))
    )["references"]
    (chunk,) = told["chunks"]
    assert (told["object"], told["search_query"], told["notes"]) == (
        "chat.references",
        "boat",
        ["one did not fit"],
    )
    assert told["unknown_citations"] == [4]
    assert (chunk["text"], chunk["title"], chunk["page"], chunk["file_name"]) == (
        "red",
        "Boats",
        2,
        "sea.pdf",
    )
    assert (chunk["chunk_id"], chunk["document_id"]) == ("7", "doc")
    expected = {"kind": "x", "rrf_score": 0.5, "project_id": "p", "table_id": "sea", "relevance_score": 0.25}
    assert chunk["metadata"] == expected


def test_a_stream_begins_with_what_was_found():
    encoder = OpenAIStreamEncoder(ChatChunkBuilder(), META, decode_chat(body({"table_id": "sea"})))
    first, opening, unknown = (
        msgspec.json.decode(encoder.encode(event).removeprefix(b"data: "))
        for event in (FOUND, Started(1), UnknownCitations((4,)))
    )
    assert first["choices"] == unknown["choices"] == [] and opening["choices"]
    assert first["references"]["chunks"][0]["text"] == "red" and "references" not in opening
    assert unknown["references"]["unknown_citations"] == [4] and "chunks" not in unknown["references"]
