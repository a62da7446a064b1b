"""instructor over the openai client: a model of the answer, asked again when its validation fails."""

from typing import Any

import instructor
import openai
from instructor.core import InstructorRetryException
from pydantic import ValidationInfo, field_validator

from tests.contract.sdks.scenario import (
    KEY,
    PERSON_QUESTION,
    TOO_LONG,
    USUAL,
    WEATHER,
    WEATHER_QUESTION,
    Endpoint,
    Person,
    describe_error,
)

MODES = {"tools": instructor.Mode.TOOLS, "json_schema": instructor.Mode.JSON_SCHEMA}


def patch(endpoint: Endpoint, mode: instructor.Mode) -> Any:
    """The patched client."""
    client = openai.OpenAI(base_url=endpoint.base_url, api_key=KEY, max_retries=0, timeout=50)
    return instructor.from_openai(client, mode=mode)


def ask(endpoint: Endpoint, mode: str, **fields: Any) -> Any:
    messages = [{"role": "user", "content": PERSON_QUESTION}]
    usual: dict[str, Any] = {"model": endpoint.model, "messages": messages, "response_model": Person}
    return patch(endpoint, MODES[mode]).create(**usual | USUAL | fields)


def structure(endpoint: Endpoint) -> dict[str, Any]:
    return {mode: ask(endpoint, mode).model_dump() for mode in MODES}


def ask_again(endpoint: Endpoint) -> dict[str, Any]:
    """The second turn: the first answer is refused by a validator, and goes back with its complaint."""
    return {mode: _ask_twice(endpoint, mode) for mode in MODES}


def _ask_twice(endpoint: Endpoint, mode: str) -> dict[str, Any]:
    seen: list[int] = []

    class Doubted(Person):
        @field_validator("age")
        @classmethod
        def doubt_once(cls, age: int, info: ValidationInfo) -> int:
            seen.append(age)
            if len(seen) == 1:
                raise ValueError("look again")
            return age

    person = ask(endpoint, mode, response_model=Doubted, max_retries=2)
    return {"tries": len(seen), "person": person.model_dump()}


def structure_beside_tools(endpoint: Endpoint) -> dict[str, Any]:
    """Its form goes into `response_format`; tools beside it are passed on."""
    messages = [{"role": "user", "content": WEATHER_QUESTION}]
    fields = {"tools": [WEATHER], "tool_choice": "none", "messages": messages}
    return {"cities": [], "person": ask(endpoint, "json_schema", **fields).model_dump()}


def stream_structure(endpoint: Endpoint) -> dict[str, Any]:
    messages = [{"role": "user", "content": PERSON_QUESTION}]
    found = {}
    for mode, setting in MODES.items():
        client = patch(endpoint, setting)
        pieces = list(client.create_partial(Person, messages=messages, model=endpoint.model, **USUAL))
        found[mode] = {"pieces": len(pieces), "person": pieces[-1].model_dump()}
    return found


def overflow(endpoint: Endpoint) -> dict[str, Any]:
    try:
        ask(endpoint, "tools", messages=[{"role": "user", "content": TOO_LONG}], max_retries=0)
    except InstructorRetryException as error:
        return describe_error(error.__cause__)
    return {}
