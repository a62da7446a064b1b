"""fireworks-ai 0.15, with `fireworks.client`. It puts no stream together, either."""

from typing import Any

from fireworks.client import Fireworks

from tests.contract.sdks.message_objects import follow_calls, hold_talk
from tests.contract.sdks.scenario import KEY, USUAL, Endpoint


def answer(endpoint: Endpoint) -> Any:
    client = Fireworks(base_url=endpoint.base_url, api_key=KEY)

    def ask(messages: list[Any], **fields: Any) -> Any:
        asked: dict[str, Any] = {"model": endpoint.model, "messages": messages} | USUAL | fields
        return client.chat.completions.create(**asked).choices[0].message

    return ask


def talk(endpoint: Endpoint) -> list[str]:
    return hold_talk(answer(endpoint))


def call_tools(endpoint: Endpoint) -> dict[str, Any]:
    return follow_calls(answer(endpoint))
