"""The openai client, unchanged: chat and text completions, buffered and streamed, alone and together."""

import asyncio
from typing import Any

import openai
from openai.types import Completion
from openai.types.chat import ChatCompletion

from tests.contract.conftest import Target

HELLO: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]
SAME: Any = {"max_tokens": 24, "temperature": 0.8, "seed": 11}
"""Makes a sampled answer the same twice."""

USAGE: Any = {"stream": True, "stream_options": {"include_usage": True}}


def test_a_chat_is_answered(client: openai.OpenAI, target: Target) -> None:
    answer = client.chat.completions.create(model=target.model, messages=HELLO, max_tokens=24)
    assert isinstance(answer, ChatCompletion)
    assert answer.id.startswith("chatcmpl-") and answer.model == target.model
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length") and choice.index == 0
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert 0 < answer.usage.completion_tokens <= 24


def test_a_text_is_continued(client: openai.OpenAI, target: Target) -> None:
    answer = client.completions.create(model=target.model, prompt="Once upon a time", max_tokens=8)
    assert isinstance(answer, Completion) and answer.id.startswith("cmpl-")
    (choice,) = answer.choices
    assert choice.text and choice.finish_reason in ("stop", "length")
    assert answer.usage is not None and 0 < answer.usage.completion_tokens <= 8


def test_a_streamed_chat_is_the_buffered_one(client: openai.OpenAI, target: Target) -> None:
    whole = client.chat.completions.create(model=target.model, messages=HELLO, n=2, **SAME)
    chunks = list(client.chat.completions.create(model=target.model, messages=HELLO, n=2, **SAME, **USAGE))
    *parts, last = chunks
    for choice in whole.choices:
        told = [part for chunk in parts for part in chunk.choices if part.index == choice.index]
        assert "".join(part.delta.content or "" for part in told) == choice.message.content
        assert [part.finish_reason for part in told[:-1]] == [None] * (len(told) - 1)
        assert told[-1].finish_reason == choice.finish_reason
        assert [part.delta.role for part in told] == ["assistant"] + [None] * (len(told) - 1)
    assert last.choices == [] and last.usage is not None and whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert all(chunk.usage is None for chunk in parts)
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_streamed_text_is_the_buffered_one(client: openai.OpenAI, target: Target) -> None:
    asked: Any = {"model": target.model, "prompt": ["Once upon", "The end"], "n": 2} | SAME
    whole = client.completions.create(**asked)
    parts = list(client.completions.create(**asked, **USAGE))
    assert len(whole.choices) == 4
    for choice in whole.choices:
        told = [part for chunk in parts for part in chunk.choices if part.index == choice.index]
        assert "".join(part.text for part in told) == choice.text
        assert told[-1].finish_reason == choice.finish_reason
    counts = (
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
    )  # the second finds what is kept of the first
    assert all(getattr(parts[-1].usage, name) == getattr(whole.usage, name) for name in counts)


def test_token_ids_are_a_prompt_as_their_text_is(client: openai.OpenAI, target: Target) -> None:
    found = client.post(
        "/../tokenize", cast_to=dict[str, Any], body={"model": target.model, "prompt": "Once upon"}
    )
    tokens = found["tokens"]
    by_text = client.completions.create(model=target.model, prompt="Once upon", **SAME)
    by_ids = client.completions.create(model=target.model, prompt=tokens, **SAME)
    by_lists = client.completions.create(model=target.model, prompt=[tokens, tokens], **SAME)
    assert by_ids.choices[0].text == by_text.choices[0].text == by_lists.choices[0].text
    assert by_ids.usage is not None and by_text.usage is not None
    assert by_ids.usage.prompt_tokens == by_text.usage.prompt_tokens == len(tokens)


def test_a_stop_text_ends_an_answer_and_is_cut(cantor: Target) -> None:
    with openai.OpenAI(base_url=cantor.base_url, api_key="none", max_retries=0, timeout=60) as client:
        asked: Any = {"model": cantor.model, "messages": HELLO, **SAME}
        text = client.chat.completions.create(**asked).choices[0].message.content or ""
        stop = text[3:6]
        cut = client.chat.completions.create(stop=[stop, "never said"], **asked).choices[0]
        assert (cut.message.content, cut.finish_reason) == (text[: text.index(stop)], "stop")
        stream = client.chat.completions.create(stop=stop, stream=True, **asked)
        assert (
            "".join(part.delta.content or "" for chunk in stream for part in chunk.choices)
            == cut.message.content
        )


def test_extra_fields_go_in_the_extra_body(client: openai.OpenAI, target: Target) -> None:
    extra = {"top_k": 1, "min_p": 0.1, "stop_token_ids": [2]}
    answer = client.chat.completions.create(
        model=target.model, messages=HELLO, extra_body=extra, max_tokens=4
    )
    assert answer.choices[0].message.content


def test_the_stream_helper_of_the_client_works(client: openai.OpenAI, target: Target) -> None:
    asked: Any = {"model": target.model, "messages": HELLO, **SAME}
    with client.chat.completions.stream(**asked) as stream:
        texts = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(texts) == final.choices[0].message.content
    assert (
        final.choices[0].message.content == client.chat.completions.create(**asked).choices[0].message.content
    )


def test_raw_responses_show_headers(client: openai.OpenAI, target: Target) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=target.model, messages=HELLO, max_tokens=4, user="u", extra_headers={"x-request-id": "trace-7"}
    )
    assert (raw.status_code, raw.headers["x-request-id"], raw.request_id) == (200, "trace-7", "trace-7")
    assert raw.headers["x-antiphon-ignored"] == "user"
    assert raw.parse().choices[0].message.content
    with client.chat.completions.with_streaming_response.create(
        model=target.model, messages=HELLO, max_tokens=4, stream=True
    ) as streamed:
        assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert [line for line in streamed.iter_lines() if line][-1] == "data: [DONE]"


def test_the_request_id_of_an_answer_is_known_to_the_client(client: openai.OpenAI, target: Target) -> None:
    answer = client.chat.completions.create(model=target.model, messages=HELLO, max_tokens=4)
    assert (answer._request_id or "").startswith("req-")


def test_models_are_listed_and_found(client: openai.OpenAI, target: Target, scripted: Target) -> None:
    names = [model.id for model in client.models.list()]
    assert target.model in names
    assert client.models.retrieve(target.model).object == "model"
    if target is scripted:
        assert client.models.retrieve("org/scripted").id == "org/scripted"


async def test_many_at_once_from_the_async_client(target: Target) -> None:
    async with openai.AsyncOpenAI(
        base_url=target.base_url, api_key="none", max_retries=0, timeout=60
    ) as client:
        asked: Any = {"model": target.model, "messages": HELLO, **SAME}

        async def buffered() -> str:
            return (await client.chat.completions.create(**asked)).choices[0].message.content or ""

        async def streamed() -> str:
            stream = await client.chat.completions.create(stream=True, **asked)
            return "".join([part.delta.content or "" async for chunk in stream for part in chunk.choices])

        async def continued() -> str:
            answer: Completion = await client.completions.create(model=target.model, prompt="a", **SAME)
            return answer.choices[0].text

        chats = await asyncio.gather(*(ask() for _ in range(8) for ask in (buffered, streamed)))
        texts = await asyncio.gather(*(continued() for _ in range(8)))
    assert len(set(chats)) == 1 and len(set(texts)) == 1 and chats[0] and texts[0]
