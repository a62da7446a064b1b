"""openai: its messages sent back as they are, its stream helper, and its `parse`."""

from typing import Any

import openai

from tests.contract.sdks.message_objects import follow_calls, hold_talk
from tests.contract.sdks.scenario import (
    KEY,
    NO_MORE,
    PERSON_QUESTION,
    TOO_LONG,
    USUAL,
    WEATHER,
    Endpoint,
    Person,
    describe_error,
)


def connect(endpoint: Endpoint) -> openai.OpenAI:
    return openai.OpenAI(base_url=endpoint.base_url, api_key=KEY, max_retries=0, timeout=50)


def answer(endpoint: Endpoint, stream: bool = False) -> Any:
    """A function that gives the message of one call; of a stream, as the client puts it together."""
    completions = connect(endpoint).chat.completions

    def ask(messages: list[Any], **fields: Any) -> Any:
        asked: dict[str, Any] = {"model": endpoint.model, "messages": messages} | USUAL | fields
        if not stream:
            return completions.create(**asked).choices[0].message
        with completions.stream(**asked) as events:
            return events.get_final_completion().choices[0].message

    return ask


def talk(endpoint: Endpoint) -> list[str]:
    return hold_talk(answer(endpoint)) + hold_talk(answer(endpoint, stream=True))


def call_tools(endpoint: Endpoint) -> dict[str, Any]:
    return follow_calls(answer(endpoint))


def stream_tools(endpoint: Endpoint) -> dict[str, Any]:
    return follow_calls(answer(endpoint, stream=True))


def parse(endpoint: Endpoint, messages: list[Any], **fields: Any) -> Any:
    asked: dict[str, Any] = {"model": endpoint.model, "messages": messages, "response_format": Person}
    return connect(endpoint).chat.completions.parse(**asked | USUAL | fields).choices[0].message


def structure(endpoint: Endpoint) -> dict[str, Any]:
    return {"parse": parse(endpoint, [{"role": "user", "content": PERSON_QUESTION}]).parsed.model_dump()}


def structure_beside_tools(endpoint: Endpoint) -> dict[str, Any]:
    """`parse` takes strict tools alone."""
    function = WEATHER["function"]
    closed = function["parameters"] | {"additionalProperties": False}
    strict = {"type": "function", "function": function | {"parameters": closed, "strict": True}}
    parsed: list[Any] = []

    def ask(messages: list[Any], **fields: Any) -> Any:
        message = parse(endpoint, messages, **fields | {"tools": [strict]})
        parsed.append(message.parsed)
        return message

    found = follow_calls(ask, **NO_MORE)
    return {"cities": found["cities"], "person": parsed[-1].model_dump()}


def stream_structure(endpoint: Endpoint) -> dict[str, Any]:
    asked: list[Any] = [{"role": "user", "content": PERSON_QUESTION}]
    completions = connect(endpoint).chat.completions
    with completions.stream(model=endpoint.model, messages=asked, response_format=Person, **USUAL) as stream:
        pieces = [event for event in stream if event.type == "content.delta"]
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert parsed is not None
    return {"pieces": len(pieces), "person": parsed.model_dump()}


def overflow(endpoint: Endpoint) -> dict[str, Any]:
    try:
        answer(endpoint)([{"role": "user", "content": TOO_LONG}])
    except openai.BadRequestError as error:
        return describe_error(error)
    return {}
