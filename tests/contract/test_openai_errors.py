"""The openai client, unchanged: errors become its exception classes, retries and timeouts act."""

import asyncio
from typing import Any

import openai
import pytest

from tests.contract.calls import ended, find_records, say
from tests.contract.conftest import KEY, Scripted, Target
from tests.support.waiting import await_until

HELLO: Any = [{"role": "user", "content": "Hello!"}]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"n": 0}, "invalid_value", "n"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": say("x " * 5000)}, "context_length_exceeded", None),
        ({"functions": [{"name": "f", "parameters": {}}]}, "unsupported_parameter", "functions"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
        ({"store": True}, "unsupported_parameter", "store"),
        ({"extra_body": {"colour": "red"}}, "unknown_parameter", "colour"),
    ],
)
def test_a_bad_request_names_its_field(
    client: openai.OpenAI, target: Target, fields: Any, code: str, param: str | None
) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                **{"model": target.model, "messages": HELLO, "stream": stream} | fields
            )
        assert (caught.value.code, caught.value.type) == (code, "invalid_request_error")
        assert param is None or caught.value.param == param
        assert caught.value.request_id and caught.value.message


def test_the_clients_own_defaults_are_accepted(client: openai.OpenAI, target: Target) -> None:
    answer = client.chat.completions.create(
        model=target.model, messages=HELLO, max_completion_tokens=4, frequency_penalty=0, presence_penalty=0,
        logprobs=False, n=1, response_format={"type": "text"}, tools=[], tool_choice="none", store=False,
        logit_bias={}, modalities=["text"], service_tier="auto", stop=None, user="u",
    )  # fmt: skip
    assert answer.choices


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    for ask in (
        lambda: client.chat.completions.create(model="gpt-9", messages=HELLO),
        lambda: client.completions.create(model="gpt-9", prompt="a"),
        lambda: client.models.retrieve("gpt-9"),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            ask()
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_an_unknown_path_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.moderations.create(model="m", input="a")
    assert caught.value.code == "route_not_found"


def test_a_body_of_20_mb_is_an_api_status_error(client: openai.OpenAI, target: Target) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(model=target.model, prompt="x" * 20_000_000)
    assert (caught.value.status_code, caught.value.body["code"]) == (413, "body_too_large")  # type: ignore[index]


def test_a_wrong_key_is_an_authentication_error_a_right_one_not(keyed: Scripted) -> None:
    for key in ("wrong", KEY + "x", "none"):
        with (
            openai.OpenAI(base_url=keyed.base_url, api_key=key, max_retries=0) as stranger,
            pytest.raises(openai.AuthenticationError) as caught,
        ):
            stranger.models.list()
        assert caught.value.code == "invalid_api_key" and KEY not in caught.value.message
    with openai.OpenAI(base_url=keyed.base_url, api_key=KEY, max_retries=0) as known:
        assert [model.id for model in known.models.list()] == ["scripted", "org/scripted"]


def test_overload_is_a_rate_limit_error_with_retry_after(puppet: openai.OpenAI) -> None:
    with pytest.raises(openai.RateLimitError) as caught:
        puppet.chat.completions.create(model="scripted", messages=say("be busy"))
    assert (caught.value.response.headers["retry-after"], caught.value.code) == ("7", "overloaded")


def test_an_engine_that_is_away_is_an_internal_server_error(puppet: openai.OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as caught:
            puppet.chat.completions.create(model="scripted", messages=say("be away"), stream=stream)
        assert (caught.value.status_code, caught.value.code) == (503, "engine_unavailable")


def test_the_clients_own_retry_succeeds_once_the_engine_is_back(puppet: openai.OpenAI) -> None:
    patient = puppet.with_options(max_retries=2)
    for stream in (False, True):
        words = f"be away once, {stream}"
        answer: Any = patient.chat.completions.create(model="scripted", messages=say(words), stream=stream)
        assert list(answer) if stream else answer.choices[0].message.content == "Hello world!"


def test_an_error_inside_a_stream_is_raised_after_its_chunks(puppet: openai.OpenAI) -> None:
    chat = puppet.chat.completions.create(model="scripted", messages=say("die midway"), stream=True)
    text = puppet.completions.create(model="scripted", prompt="die midway", stream=True)
    streams: list[tuple[Any, Any]] = [
        (chat, lambda part: part.delta.content or ""),
        (text, lambda part: part.text),
    ]
    for stream, content in streams:
        told: list[str] = []
        texts = (content(part) for chunk in stream for part in chunk.choices)
        with pytest.raises(openai.APIError) as caught:
            told.extend(texts)
        assert "".join(told) == "Hello world"
        assert not isinstance(caught.value, openai.APIStatusError)
        assert (caught.value.code, caught.value.type) == ("engine_died", "server_error")
        assert caught.value.message == "the engine's process ended"


def test_a_request_that_may_have_killed_an_engine_is_not_retried(
    puppet: openai.OpenAI, scripted: Scripted
) -> None:
    before = len(scripted.engine.streams)  # other files ask the same engine
    with pytest.raises(openai.InternalServerError):
        puppet.with_options(max_retries=2).chat.completions.create(model="scripted", messages=say("die once"))
    asked = [str(record.request.prompts) for record in scripted.engine.streams[before:]]
    assert len([prompts for prompts in asked if "die once" in prompts]) == 1


def test_comments_that_fill_silence_do_not_disturb_the_client(puppet: openai.OpenAI) -> None:
    stream = puppet.chat.completions.create(model="scripted", messages=say("begin late"), stream=True)
    assert "".join(part.delta.content or "" for chunk in stream for part in chunk.choices) == "Hello world!"


async def test_an_error_inside_a_stream_is_raised_by_the_async_client(scripted: Scripted) -> None:
    async with openai.AsyncOpenAI(base_url=scripted.base_url, api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="scripted", messages=say("die midway"), stream=True
        )
        with pytest.raises(openai.APIError) as caught:
            async for _ in stream:
                pass
    assert caught.value.code == "engine_died"


def test_the_same_failure_buffered_is_a_status_error(puppet: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        puppet.chat.completions.create(model="scripted", messages=say("die midway"))
    assert (caught.value.status_code, caught.value.code) == (503, "engine_died")


def test_the_text_of_an_overflow_has_the_words_that_langchain_looks_for(puppet: openai.OpenAI) -> None:
    """Its ContextOverflowError needs them, because the text of the client's error has no code."""
    with pytest.raises(openai.BadRequestError) as caught:
        puppet.chat.completions.create(model="scripted", messages=say("x " * 5000))
    assert "Input tokens exceed the configured limit" in str(caught.value)
    assert str(caught.value).count("exceed the configured limit") == 1


def test_a_client_that_times_out_has_left(puppet: openai.OpenAI, scripted: Scripted) -> None:
    """Asked again where the machine was too busy for the request to arrive in time, or for the client to time
    out before the server fills the silence of a stream."""
    for stream in (False, True):
        words, has_timed_out = f"never begin, stream {stream}", False
        while not (has_timed_out and find_records(scripted, words)):
            try:
                begun: Any = puppet.with_options(timeout=0.3).chat.completions.create(
                    model="scripted", messages=say(words), stream=stream
                )
            except openai.APITimeoutError:
                has_timed_out = True
            else:
                begun.close()
        ended(scripted, words)


def test_a_client_that_leaves_a_stream_ends_its_work(puppet: openai.OpenAI, scripted: Scripted) -> None:
    with puppet.chat.completions.create(model="scripted", messages=say("never end"), stream=True) as stream:
        for number, _ in enumerate(stream):
            if number == 5:
                break
    ended(scripted, "never end")


async def test_an_async_client_that_is_cancelled_has_left(scripted: Scripted) -> None:
    async with openai.AsyncOpenAI(base_url=scripted.base_url, api_key="none", max_retries=0) as client:
        words = "never begin, and be cancelled"
        async with asyncio.TaskGroup() as group, asyncio.timeout(60):
            asking = group.create_task(client.chat.completions.create(model="scripted", messages=say(words)))
            await await_until(lambda: find_records(scripted, words))
            asking.cancel()
        await asyncio.to_thread(ended, scripted, words)
