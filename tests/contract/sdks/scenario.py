"""What every client is asked to do: the same questions, the same tool, the same form of an answer."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

KEY = "none"
QUESTIONS = ("Who are you?", "What can you do?")
WEATHER_QUESTION = "What is the weather in Berlin?"
PERSON_QUESTION = "Name somebody, and say how old they are."
TOO_LONG = "water and bread " * 3000
"""More tokens than the model's context holds."""
NO_MORE = {"tool_choice": "none"}
"""On the second turn beside a form: so small a model would call for ever, where it may."""
USUAL: dict[str, Any] = {"temperature": 0, "max_tokens": 120}


@dataclass(frozen=True)
class Endpoint:
    """The server that a client is pointed at, and the model that it names."""

    base_url: str
    model: str
    api: str = "chat"
    """`responses` for the Responses API, `messages` for the Messages API."""

    @property
    def root_url(self) -> str:
        """What clients of the Messages API add their paths to."""
        return self.base_url.removesuffix("/v1")

    @property
    def form(self) -> "type[Person]":
        """The form of an answer."""
        return ListedPerson if self.api == "messages" else Person


class Person(BaseModel):
    """Somebody."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


class ListedPerson(Person):
    """Clients of Anthropic move bounds, which it does not keep, into descriptions, so this form has none."""

    name: Literal["Ada", "Grace"]
    age: Literal[36, 85]


WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
"""The tool, for clients that take it as it is sent."""


class Weather:
    """The tool as a function, which remembers the cities that it was called with."""

    def __init__(self) -> None:
        self.cities: list[str] = []

    def get_weather(self, city: str) -> str:
        """Get the weather of a city."""
        self.cities.append(city)
        return f"It is sunny in {city}."


def describe_error(error: BaseException | None) -> dict[str, Any]:
    """The names of an error's classes, and what it keeps of the server's body."""
    body = getattr(error, "body", None)
    return {
        "classes": [each.__name__ for each in type(error).__mro__],
        "status": getattr(error, "status_code", None),
        "code": body.get("code") if isinstance(body, dict) else getattr(error, "code", None),
        "text": str(error),
    }
