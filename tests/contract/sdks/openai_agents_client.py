"""OpenAI's Agents SDK: its runner, with two tools, over its default API, which is Responses."""

import asyncio
from typing import Any

import openai
from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled
from agents.models.openai_responses import OpenAIResponsesModel

from tests.contract.sdks.scenario import (
    KEY,
    PERSON_QUESTION,
    QUESTIONS,
    TOO_LONG,
    USUAL,
    WEATHER_QUESTION,
    Endpoint,
    Person,
    Weather,
    describe_error,
)

set_tracing_disabled(True)  # it would send traces to OpenAI


def make_agent(endpoint: Endpoint, **fields: Any) -> Agent[None]:
    client = openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=KEY, max_retries=0, timeout=50)
    model = OpenAIResponsesModel(endpoint.model, client)
    return Agent(name="antiphon", model=model, model_settings=ModelSettings(**USUAL), **fields)


async def answer(agent: Agent[None], turn: Any, stream: bool, **fields: Any) -> Any:
    """The result of one run, which is as many turns as the agent needs."""
    if not stream:
        return await Runner.run(agent, turn, **fields)
    result = Runner.run_streamed(agent, turn, **fields)
    async for _ in result.stream_events():
        pass
    return result


def talk(endpoint: Endpoint) -> list[str]:
    return asyncio.run(_talk(make_agent(endpoint)))


async def _talk(agent: Agent[None]) -> list[str]:
    """Buffered with the whole history, and streamed with the id of the answer before."""
    first, second = QUESTIONS
    whole = await answer(agent, first, stream=False)
    history = [*whole.to_input_list(), {"role": "user", "content": second}]
    streamed = await answer(agent, first, stream=True)
    results = [
        whole,
        await answer(agent, history, stream=False),
        streamed,
        await answer(agent, second, stream=True, previous_response_id=streamed.last_response_id),
    ]
    return [result.final_output for result in results]


def call_tools(endpoint: Endpoint) -> dict[str, Any]:
    return follow_calls(endpoint, stream=False)


def stream_tools(endpoint: Endpoint) -> dict[str, Any]:
    return follow_calls(endpoint, stream=True)


def follow_calls(endpoint: Endpoint, stream: bool) -> dict[str, Any]:
    weather = Weather()

    def tell_population(city: str) -> str:
        """Tell how many people live in a city."""
        return f"Three million people live in {city}."

    tools = [function_tool(weather.get_weather), function_tool(tell_population)]
    result = asyncio.run(answer(make_agent(endpoint, tools=tools), WEATHER_QUESTION, stream))
    return {"cities": weather.cities, "text": result.final_output}


def structure(endpoint: Endpoint) -> dict[str, Any]:
    agent = make_agent(endpoint, output_type=Person)
    return {
        "output_type": asyncio.run(answer(agent, PERSON_QUESTION, stream=False)).final_output.model_dump()
    }


def stream_structure(endpoint: Endpoint) -> dict[str, Any]:
    return asyncio.run(_stream(make_agent(endpoint, output_type=Person)))


async def _stream(agent: Agent[None]) -> dict[str, Any]:
    result = Runner.run_streamed(agent, PERSON_QUESTION)
    pieces = [
        event.data
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    return {"pieces": len(pieces), "person": result.final_output.model_dump()}


def overflow(endpoint: Endpoint) -> dict[str, Any]:
    try:
        asyncio.run(answer(make_agent(endpoint), TOO_LONG, stream=False))
    except openai.BadRequestError as error:
        return describe_error(error)
    return {}
