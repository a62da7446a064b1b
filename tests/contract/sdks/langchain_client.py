"""LangChain's ChatOpenAI, ChatAnthropic and OpenAIEmbeddings."""

from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import SecretStr

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


def chat(endpoint: Endpoint) -> BaseChatModel:
    if endpoint.api == "messages":
        return ChatAnthropic(
            model=endpoint.model,
            base_url=endpoint.root_url,
            api_key=SecretStr(KEY),
            max_retries=0,
            timeout=50,
            **USUAL,
        )
    return ChatOpenAI(
        model=endpoint.model,
        base_url=endpoint.base_url,
        api_key=SecretStr(KEY),
        max_retries=0,
        timeout=50,
        use_responses_api=endpoint.api == "responses",
        **USUAL,
    )


def answer(model: Any, messages: list[Any], stream: bool) -> Any:
    """One answer; of a stream, the sum of its chunks."""
    if not stream:
        return model.invoke(messages)
    first, *rest = model.stream(messages)
    return sum(rest, first)


def talk(endpoint: Endpoint) -> list[str]:
    texts = []
    for stream in (False, True):
        messages: list[Any] = []
        for question in QUESTIONS:
            messages.append(HumanMessage(question))
            messages.append(answer(chat(endpoint), messages, stream))
            texts.append(messages[-1].text)
    return texts


def call_tools(endpoint: Endpoint) -> dict[str, Any]:
    return follow_calls(endpoint, stream=False)


def stream_tools(endpoint: Endpoint) -> dict[str, Any]:
    return follow_calls(endpoint, stream=True)


def follow_calls(
    endpoint: Endpoint, stream: bool, last: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """Two turns; `last` are fields of the second turn alone."""
    weather = Weather()
    tool = StructuredTool.from_function(weather.get_weather)
    model = chat(endpoint).bind_tools([tool], **fields)
    messages: list[Any] = [HumanMessage(WEATHER_QUESTION)]
    called = answer(model, messages, stream)
    assert isinstance(called, AIMessage)
    messages += [called, *(tool.invoke(call) for call in called.tool_calls)]
    model = chat(endpoint).bind_tools([tool], **fields, **last or {})
    return {"cities": weather.cities, "text": answer(model, messages, stream).text}


METHODS = ("json_schema", "function_calling")


def structure(endpoint: Endpoint) -> dict[str, Any]:
    return {
        method: chat(endpoint)
        .with_structured_output(endpoint.form, method=method)
        .invoke(PERSON_QUESTION)
        .model_dump()
        for method in METHODS
    }


def structure_beside_tools(endpoint: Endpoint) -> dict[str, Any]:
    fields: dict[str, Any] = {"response_format": Person, "strict": True}
    last: dict[str, Any] = NO_MORE
    if endpoint.api == "messages":
        form = {"type": "json_schema", "schema": endpoint.form.model_json_schema()}
        fields, last = {"output_config": {"format": form}}, {"tool_choice": {"type": "none"}}
    found = follow_calls(endpoint, stream=False, last=last, **fields)
    return {"cities": found["cities"], "person": Person.model_validate_json(found["text"]).model_dump()}


def stream_structure(endpoint: Endpoint) -> dict[str, Any]:
    found = {}
    for method in METHODS:
        pieces = list(
            chat(endpoint).with_structured_output(endpoint.form, method=method).stream(PERSON_QUESTION)
        )
        found[method] = {"pieces": len(pieces), "person": pieces[-1].model_dump()}
    return found


def overflow(endpoint: Endpoint) -> dict[str, Any]:
    try:
        chat(endpoint).invoke(TOO_LONG)
    except ContextOverflowError as error:
        return describe_error(error)
    return {}


def embed(endpoint: Endpoint) -> list[int]:
    """Without its check of lengths, which would fetch a tokenizer of OpenAI's."""
    made = OpenAIEmbeddings(
        model="encoder",
        base_url=endpoint.base_url,
        api_key=SecretStr(KEY),
        check_embedding_ctx_length=False,
    )
    return [len(row) for row in made.embed_documents(["water", "bread"])]
