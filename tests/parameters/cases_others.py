"""Token ids, embeddings, adapters."""

import base64
import struct
from typing import Any

from tests.parameters.registry import OUT, Answer, Asker, case
from tests.parameters.spots import DETOKENIZE, EMBEDDINGS, LOAD, RERANK, TALK, TOKENIZE, UNLOAD, WEATHER

TALKED: dict[str, Any] = {"prompt": None, "messages": TALK["messages"]}


def tokens(answer: Answer) -> list[int]:
    assert answer.status == 200, answer.body
    found: list[int] = answer.json["tokens"]
    return found


def vector(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    return answer.json["data"][0]["embedding"]


@case(TOKENIZE, "prompt", {}, "Hello!", "Hello there, all of you!")
@case(TOKENIZE, "messages", {"prompt": None}, TALK["messages"], TALK["messages"] * 3)
@case(TOKENIZE, "add_special_tokens", {}, False, True)
@case(TOKENIZE, "tools", TALKED, OUT, [WEATHER])
@case(TOKENIZE, "add_generation_prompt", TALKED, False, True)
def there_are_more_tokens(fewer: Answer, more: Answer) -> None:
    assert len(tokens(fewer)) < len(tokens(more))


@case(TOKENIZE, "return_token_strs", {}, OUT, True)
def each_token_has_its_text(without: Answer, texts: Answer) -> None:
    assert "token_strs" not in without.json and len(texts.json["token_strs"]) == len(tokens(texts))


@case((*TOKENIZE, *DETOKENIZE), "model", {}, "cantor", "nobody")
@case(EMBEDDINGS, "model", {}, "encoder", "nobody")
@case(RERANK, "model", {}, "reranker", "nobody")
def an_unknown_model_is_refused(known: Answer, unknown: Answer) -> None:
    assert known.status == 200 and unknown.status == 404 and "nobody" in unknown.refusal


@case(DETOKENIZE, "tokens", {}, lambda asker: asker.ids("Hello"), lambda asker: asker.ids("Goodbye"))
def the_text_of_the_tokens(one: Answer, other: Answer) -> None:
    assert (one.json["prompt"].strip(), other.json["prompt"].strip()) == ("Hello", "Goodbye")


@case(EMBEDDINGS, "input", {}, "the cat", "a far island", ["a far island", "the cat"])
def every_text_has_its_vector(one: Answer, other: Answer, both: Answer) -> None:
    assert vector(one) != vector(other) == vector(both) and len(both.json["data"]) == 2


@case(EMBEDDINGS, "encoding_format", {}, "float", "base64")
def the_same_numbers_as_bytes(numbers: Answer, packed: Answer) -> None:
    assert isinstance(vector(numbers), list)
    data = base64.b64decode(vector(packed))
    assert list(struct.unpack(f"<{len(data) // 4}f", data))[:3] == [
        struct.unpack("<f", struct.pack("<f", each))[0] for each in vector(numbers)[:3]
    ]


@case(EMBEDDINGS, "dimensions", {}, 64, 32)
def only_what_the_model_makes(own: Answer, other: Answer) -> None:
    assert len(vector(own)) == 64 and other.status == 400 and "dimensions" in other.refusal


@case(RERANK, "query", {}, "the book", "a man and a woman")
@case(RERANK, "documents", {}, ["a", "fire"], ["a", {"text": "water"}])
@case(RERANK, "max_tokens_per_doc", {"documents": ["the first book of all", "fire and water"]}, OUT, 1)
def other_texts_have_other_scores(one: Answer, other: Answer) -> None:
    assert scores(one) != scores(other) and len(scores(one)) == len(scores(other)) == 2


@case(RERANK, "top_n", {}, OUT, 1)
def only_the_best_are_told(every: Answer, best: Answer) -> None:
    assert len(scores(every)) == 2 and scores(best) == scores(every)[:1]


@case(RERANK, "return_documents", {}, OUT, True)
def the_answer_has_the_texts(without: Answer, texts: Answer) -> None:
    assert not any("document" in each for each in without.json["results"])
    assert {each["document"]["text"] for each in texts.json["results"]} == {"a", "fire"}


def scores(answer: Answer) -> list[float]:
    """The scores of an answer's documents, best first."""
    return [each["relevance_score"] for each in answer.json["results"]]


# --- adapters -----------------------------------------------------------------------------------------------


def unloaded(asker: Asker) -> None:
    """Takes away what a request loaded."""
    for name in ("loaded", "other"):
        asker.client.post("/v1/unload_lora_adapter", json={"lora_name": name})


def named(asker: Asker) -> list[str]:
    return [model["id"] for model in asker.client.get("/v1/models").json()["data"]]


def loaded(asker: Asker) -> dict[str, Any]:
    """Has an adapter of that name loaded."""
    unloaded(asker)
    body = {"lora_name": "loaded", "lora_path": "mood.gguf", "base_model_name": "cantor"}
    assert asker.client.post("/v1/load_lora_adapter", json=body).status_code == 200
    return {}


@case(LOAD, "lora_name", {}, "loaded", "cantor", after=unloaded)
def a_name_that_is_taken_is_refused(free: Answer, taken: Answer) -> None:
    assert free.status == 200 and b"loaded" in free.body
    assert taken.status == 400 and "cantor" in taken.refusal


@case(LOAD, "lora_path", {}, "pirate.gguf", "nowhere.gguf", after=unloaded)
@case(LOAD, "base_model_name", {}, "cantor", "nobody", after=unloaded)
@case(UNLOAD, "lora_name", loaded, "loaded", "other")
def the_one_is_done_and_the_other_refused(done: Answer, refused: Answer) -> None:
    assert done.status == 200 and refused.status >= 400 and refused.refusal


@case(LOAD, "load_inplace", loaded, OUT, True, after=None)
def a_name_is_given_to_another_only_where_that_is_meant(refused: Answer, done: Answer) -> None:
    assert refused.status == 400 and "loaded" in refused.refusal and done.status == 200
