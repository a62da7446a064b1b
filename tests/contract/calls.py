"""Calls that tests of several clients make, and what they left in the log."""

from functools import partial
from typing import Any

from antiphon_testing.scripted_engine import StreamEnding, StreamRecord
from tests.contract.conftest import Scripted
from tests.support.waiting import wait_until


def say(words: str) -> Any:
    return [{"role": "user", "content": words}]


def ended(scripted: Scripted, words: str, count: int = 1) -> None:
    """The last streams that were told so ended because their reader left."""
    for record in find_records(scripted, words)[-count:]:
        wait_until(partial(has_ended, record))
        assert record.ending is StreamEnding.LEFT, "the work goes on for nobody, or has ended otherwise"


def has_ended(record: StreamRecord) -> bool:
    return record.ending is not StreamEnding.OPEN


def find_records(scripted: Scripted, words: str) -> list[StreamRecord]:
    return [record for record in scripted.engine.streams if words in str(record.request.prompts)]


CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str, parameters: Any, description: str = "", **more: Any) -> Any:
    function = {"name": name, "description": description, "parameters": parameters} | more
    return {"type": "function", "function": function}


WEATHER = tool("get_weather", CITY, "Get the weather of a city.")
ASKED: Any = [{"role": "user", "content": "What is the weather in Berlin?"}]
