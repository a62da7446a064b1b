"""Conversations with a client that gives messages as objects, and takes those objects back."""

import json
from collections.abc import Callable
from typing import Any

from tests.contract.sdks.scenario import QUESTIONS, WEATHER, WEATHER_QUESTION, Weather

Ask = Callable[..., Any]
"""Takes messages, and fields of one call; gives the message of the answer."""


def hold_talk(ask: Ask) -> list[str]:
    """Two turns without a tool."""
    messages: list[Any] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        messages.append(ask(messages))
    return [message.content for message in messages[1::2]]


def follow_calls(ask: Ask, **last: Any) -> dict[str, Any]:
    """Two turns: a call, its result, and what is said of it. `last` are fields of the second turn alone."""
    weather = Weather()
    messages: list[Any] = [{"role": "user", "content": WEATHER_QUESTION}]
    message = ask(messages, tools=[WEATHER])
    messages.append(message)
    for call in message.tool_calls:
        result = weather.get_weather(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    final = ask(messages, tools=[WEATHER], **last)
    return {"cities": weather.cities, "text": final.content}
