"""pydantic-ai: its agent, its three ways to an output, and its histories."""

import asyncio
from typing import Any

from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.embeddings import Embedder
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.exceptions import ModelContextWindowExceededError
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.contract.sdks.scenario import (
    KEY,
    NO_MORE,
    PERSON_QUESTION,
    QUESTIONS,
    TOO_LONG,
    USUAL,
    WEATHER_QUESTION,
    Endpoint,
    Weather,
    describe_error,
)

KINDS = {"native": NativeOutput, "tool": ToolOutput}


def make_model(endpoint: Endpoint) -> Model:
    if endpoint.api == "messages":
        # It knows by their names which models keep a schema, so it is told of this one.
        return AnthropicModel(
            endpoint.model,
            provider=AnthropicProvider(base_url=endpoint.root_url, api_key=KEY),
            profile=ModelProfile(supports_json_schema_output=True),
        )
    kind = OpenAIResponsesModel if endpoint.api == "responses" else OpenAIChatModel
    return kind(endpoint.model, provider=OpenAIProvider(base_url=endpoint.base_url, api_key=KEY))


def make_agent(endpoint: Endpoint, **fields: Any) -> Agent[None, Any]:
    settings = {"model_settings": USUAL} | fields
    return Agent(make_model(endpoint), retries=0, **settings)


def talk(endpoint: Endpoint) -> list[str]:
    return asyncio.run(_talk(make_agent(endpoint)))


async def _talk(agent: Agent[None, Any]) -> list[str]:
    texts = []
    for stream in (False, True):
        history: list[Any] = []
        for question in QUESTIONS:
            text, history = await answer(agent, question, stream, history)
            texts.append(text)
    return texts


async def answer(
    agent: Agent[None, Any], question: str, stream: bool, history: list[Any] | None = None
) -> tuple[Any, list[Any]]:
    """What the agent says in the end, and its history."""
    if not stream:
        done = await agent.run(question, message_history=history)
        return done.output, done.all_messages()
    async with agent.run_stream(question, message_history=history) as streamed:
        return await streamed.get_output(), streamed.all_messages()


def call_tools(endpoint: Endpoint) -> dict[str, Any]:
    return follow_calls(endpoint, stream=False)


def stream_tools(endpoint: Endpoint) -> dict[str, Any]:
    return follow_calls(endpoint, stream=True)


def follow_calls(endpoint: Endpoint, stream: bool, **fields: Any) -> dict[str, Any]:
    weather = Weather()
    agent = make_agent(endpoint, tools=[weather.get_weather], **fields)
    output, _ = asyncio.run(answer(agent, WEATHER_QUESTION, stream))
    return {"cities": weather.cities, "text": output}


def structure(endpoint: Endpoint) -> dict[str, Any]:
    return {
        name: make_agent(endpoint, output_type=kind(endpoint.form))
        .run_sync(PERSON_QUESTION)
        .output.model_dump()
        for name, kind in KINDS.items()
    }


def structure_beside_tools(endpoint: Endpoint) -> dict[str, Any]:
    found = follow_calls(
        endpoint,
        stream=False,
        output_type=NativeOutput(endpoint.form),
        model_settings=lambda context: USUAL | (NO_MORE if context.run_step > 1 else {}),
    )
    return {"cities": found["cities"], "person": found["text"].model_dump()}


def stream_structure(endpoint: Endpoint) -> dict[str, Any]:
    return {name: asyncio.run(_stream(endpoint, kind(endpoint.form))) for name, kind in KINDS.items()}


async def _stream(endpoint: Endpoint, output: Any) -> dict[str, Any]:
    async with make_agent(endpoint, output_type=output).run_stream(PERSON_QUESTION) as streamed:
        pieces = [piece async for piece in streamed.stream_output(debounce_by=None)]
    return {"pieces": len(pieces), "person": pieces[-1].model_dump()}


def overflow(endpoint: Endpoint) -> dict[str, Any]:
    try:
        make_agent(endpoint).run_sync(TOO_LONG)
    except ModelContextWindowExceededError as error:
        return describe_error(error)
    return {}


def embed(endpoint: Endpoint) -> list[int]:
    provider = OpenAIProvider(base_url=endpoint.base_url, api_key=KEY)
    made = Embedder(OpenAIEmbeddingModel("encoder", provider=provider)).embed_documents_sync(
        ["water", "bread"]
    )
    return [len(row) for row in made.embeddings]
