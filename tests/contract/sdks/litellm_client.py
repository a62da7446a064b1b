"""LiteLLM: messages and tools as dictionaries, and its own message objects sent back."""

from typing import Any

import litellm

from tests.contract.sdks.message_objects import follow_calls, hold_talk
from tests.contract.sdks.scenario import (
    KEY,
    NO_MORE,
    PERSON_QUESTION,
    TOO_LONG,
    USUAL,
    Endpoint,
    Person,
    describe_error,
)


def complete(endpoint: Endpoint, messages: list[Any], **fields: Any) -> Any:
    """One call."""
    usual = {"api_base": endpoint.base_url, "api_key": KEY, "num_retries": 0, "timeout": 50}
    return litellm.completion(f"openai/{endpoint.model}", messages, **usual | USUAL | fields)


def answer(endpoint: Endpoint, messages: list[Any], stream: bool, **fields: Any) -> Any:
    """The message of one call; of a stream, as the client puts it together."""
    made = complete(endpoint, messages, stream=stream, **fields)
    whole = litellm.stream_chunk_builder(list(made), messages=messages) if stream else made
    return whole.choices[0].message


def asker(endpoint: Endpoint, stream: bool = False, **fields: Any) -> Any:
    """A function that gives the message of one call."""
    return lambda messages, **more: answer(endpoint, messages, stream, **fields | more)


def talk(endpoint: Endpoint) -> list[str]:
    return hold_talk(asker(endpoint)) + hold_talk(asker(endpoint, stream=True))


def call_tools(endpoint: Endpoint) -> dict[str, Any]:
    return follow_calls(asker(endpoint))


def stream_tools(endpoint: Endpoint) -> dict[str, Any]:
    return follow_calls(asker(endpoint, stream=True))


def structure(endpoint: Endpoint) -> dict[str, Any]:
    asked = [{"role": "user", "content": PERSON_QUESTION}]
    text = answer(endpoint, asked, stream=False, response_format=Person).content
    return {"response_format": Person.model_validate_json(text).model_dump()}


def structure_beside_tools(endpoint: Endpoint) -> dict[str, Any]:
    found = follow_calls(asker(endpoint, response_format=Person), **NO_MORE)
    return {"cities": found["cities"], "person": Person.model_validate_json(found["text"]).model_dump()}


def stream_structure(endpoint: Endpoint) -> dict[str, Any]:
    asked = [{"role": "user", "content": PERSON_QUESTION}]
    pieces = [
        chunk.choices[0].delta.content
        for chunk in complete(endpoint, asked, stream=True, response_format=Person)
        if chunk.choices and chunk.choices[0].delta.content
    ]
    return {"pieces": len(pieces), "person": Person.model_validate_json("".join(pieces)).model_dump()}


def overflow(endpoint: Endpoint) -> dict[str, Any]:
    try:
        complete(endpoint, [{"role": "user", "content": TOO_LONG}])
    except litellm.ContextWindowExceededError as error:
        return describe_error(error)
    return {}


def embed(endpoint: Endpoint) -> list[int]:
    made = litellm.embedding("openai/encoder", ["water", "bread"], api_base=endpoint.base_url, api_key=KEY)
    return [len(row["embedding"]) for row in made.data]
