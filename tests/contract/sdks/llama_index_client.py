"""LlamaIndex's OpenAILike, and its agent."""

import asyncio
from typing import Any

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from tests.contract.sdks.scenario import (
    KEY,
    NO_MORE,
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


def chat(endpoint: Endpoint, **fields: Any) -> OpenAILike:
    usual: dict[str, Any] = {"api_base": endpoint.base_url, "api_key": KEY, "max_retries": 0, "timeout": 50}
    usual |= {"is_chat_model": True, "is_function_calling_model": True, "context_window": 2048}
    return OpenAILike(model=endpoint.model, **usual | USUAL | fields)


def talk(endpoint: Endpoint) -> list[str]:
    texts = []
    llm = chat(endpoint)
    for stream in (False, True):
        messages: list[ChatMessage] = []
        for question in QUESTIONS:
            messages.append(ChatMessage(question))
            made = list(llm.stream_chat(messages))[-1] if stream else llm.chat(messages)
            messages.append(made.message)
            texts.append(made.message.content)
    return texts


def call_tools(endpoint: Endpoint) -> dict[str, Any]:
    return asyncio.run(run_agent(endpoint, stream=False))


def stream_tools(endpoint: Endpoint) -> dict[str, Any]:
    return asyncio.run(run_agent(endpoint, stream=True))


async def run_agent(endpoint: Endpoint, stream: bool) -> dict[str, Any]:
    weather = Weather()
    agent = FunctionAgent(
        tools=[FunctionTool.from_defaults(weather.get_weather)],
        llm=chat(endpoint),
        streaming=stream,
        timeout=50,
    )
    handler = agent.run(user_msg=WEATHER_QUESTION)
    events = [event async for event in handler.stream_events()]
    text = str(await handler)
    if stream:
        assert "".join(event.delta for event in events if isinstance(event, AgentStream)) == text
    return {"cities": weather.cities, "text": text}


MODES = {"json_schema": True, "tools": False}


def structure(endpoint: Endpoint) -> dict[str, Any]:
    return {
        mode: chat(endpoint, should_use_structured_outputs=native)
        .structured_predict(Person, PromptTemplate(PERSON_QUESTION))
        .model_dump()
        for mode, native in MODES.items()
    }


def structure_beside_tools(endpoint: Endpoint) -> dict[str, Any]:
    """Without the agent, which has no form in its loop."""
    form = {
        "type": "json_schema",
        "json_schema": {"name": "Person", "schema": Person.model_json_schema()},
    }
    weather = Weather()
    tools = [FunctionTool.from_defaults(weather.get_weather)]
    llm = chat(endpoint, additional_kwargs={"response_format": form})
    history = [ChatMessage(WEATHER_QUESTION)]
    called = llm.chat_with_tools(tools, chat_history=history)
    history.append(called.message)
    for call in llm.get_tool_calls_from_response(called):
        result = weather.get_weather(**call.tool_kwargs)
        known = {"tool_call_id": call.tool_id}
        history.append(ChatMessage(result, role="tool", additional_kwargs=known))
    final = llm.chat_with_tools(tools, chat_history=history, **NO_MORE)
    person = Person.model_validate_json(final.message.content)
    return {"cities": weather.cities, "person": person.model_dump()}


def stream_structure(endpoint: Endpoint) -> dict[str, Any]:
    found = {}
    for mode, native in MODES.items():
        llm = chat(endpoint, should_use_structured_outputs=native)
        pieces: list[Any] = list(llm.stream_structured_predict(Person, PromptTemplate(PERSON_QUESTION)))
        found[mode] = {"pieces": len(pieces), "person": Person(**pieces[-1].model_dump()).model_dump()}
    return found


def overflow(endpoint: Endpoint) -> dict[str, Any]:
    """It has no error of its own: the openai client's comes through."""
    try:
        chat(endpoint).chat([ChatMessage(TOO_LONG)])
    except Exception as error:  # noqa: BLE001 - which one it is, is what the test asks
        return describe_error(error)
    return {}
