"""The spans of a request's stages: the generation, its attempts, its search and its memory strategy.

A stage calls this module only if its context has a span, so requests cost nothing without tracing. Names
follow OpenTelemetry's conventions for generative AI; docs/tracing.md lists them.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from antiphon.domain.context import Attributes, AttributeValue, Context, Span, SpanKind
from antiphon.domain.events import Usage
from antiphon.domain.memory import MemoryStrategy
from antiphon.domain.messages import MediaContent, Message
from antiphon.domain.request import ConstraintKind, Conversation, GenerationRequest
from antiphon.domain.retrieval import References, Retrieval
from antiphon.domain.values import replace
from antiphon.engines.registry import Model, ModelRoute
from antiphon.errors import AntiphonError, InternalError
from antiphon.pipeline.recorded_answer import RecordedAnswer
from antiphon.retrieval.base import LONGEST_NAME

CHAT, COMPLETION = "chat", "text_completion"
"""Operations, as the conventions name them."""

EMBEDDINGS = "embeddings"
"""An operation, as the conventions name it. They have no name for a ranking."""

OK = "ok"

OWN_PROVIDER = "antiphon"
"""The provider name of models that run on this server."""

JSON_KINDS = (ConstraintKind.JSON_OBJECT, ConstraintKind.JSON_SCHEMA)


def open_generation(request: GenerationRequest, model: Model, context: Context, span: Span) -> Context:
    """Returns the context of a generation, with a span of its own. `span`: the context's."""
    first_prompt = request.prompts[0]
    operation = CHAT if isinstance(first_prompt, Conversation) else COMPLETION
    context = open_operation(operation, model, context, span)
    child = context.span
    if child is not None and child.is_recorded:
        child.add(_describe_request(request))
        if child.records_content:
            child.add({"gen_ai.input.messages": _encode_prompts(request)})
            if request.output.stop:
                child.add({"gen_ai.request.stop_sequences": request.output.stop})
    return context


def open_operation(operation: str, model: Model, context: Context, span: Span) -> Context:
    """Returns the context of a model's work, with a span of its own."""
    kind = SpanKind.CLIENT if any(route.provider for route in model.routes) else SpanKind.INTERNAL
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": model.routes[0].provider or OWN_PROVIDER,
        "gen_ai.request.model": model.label,
    }
    return replace(context, span=span.open(f"{operation} {model.label}", kind, attributes))


def _describe_request(request: GenerationRequest) -> dict[str, AttributeValue]:
    """Returns the request's options as attributes, without those that the caller did not set."""
    sampling, output = request.sampling, request.output
    is_json = output.constraint is not None and output.constraint.kind in JSON_KINDS
    values: dict[str, AttributeValue | None] = {
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        "gen_ai.request.max_tokens": output.max_tokens,
        "gen_ai.request.choice.count": output.choices if output.choices > 1 else None,
        "gen_ai.request.stream": None if request.is_buffered else True,
        "gen_ai.output.type": "json" if is_json else None,  # nothing for plain text
    }
    return {name: value for name, value in values.items() if value is not None}


def close_operation(
    context: Context,
    model: Model,
    status: str,
    usage: Usage,
    total_s: float,
    first_token_s: float | None,
    finish_reasons: Sequence[str],
    answer: RecordedAnswer | None,
) -> None:
    """Ends the span of a model's work, and records its metrics. `first_token_s`: seconds to the first token,
    if there was one. `answer`: the text, if spans contain texts."""
    span = context.span
    if span is None:
        return
    route = find_route(model, context)
    if status != OK:
        span.fail(status)
    attributes: dict[str, AttributeValue] = {
        "gen_ai.provider.name": route.provider or OWN_PROVIDER,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
    }
    if usage.cached_tokens:
        attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    if usage.reasoning_tokens:
        attributes["gen_ai.usage.reasoning.output_tokens"] = usage.reasoning_tokens
    if finish_reasons:
        attributes["gen_ai.response.finish_reasons"] = tuple(finish_reasons)
    if first_token_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = first_token_s
    if answer is not None:
        attributes["gen_ai.output.messages"] = _encode_answer(answer)
    span.add(attributes)
    span.measure("gen_ai.server.request.duration", total_s)
    span.measure("gen_ai.client.token.usage", usage.prompt_tokens, {"gen_ai.token.type": "input"})
    if usage.completion_tokens:
        span.measure("gen_ai.client.token.usage", usage.completion_tokens, {"gen_ai.token.type": "output"})
    if first_token_s is not None:
        span.measure("gen_ai.server.time_to_first_token", first_token_s)
        if usage.completion_tokens > 1:
            seconds_per_token = (total_s - first_token_s) / (usage.completion_tokens - 1)
            span.measure("gen_ai.server.time_per_output_token", seconds_per_token)
    span.close()


def find_route(model: Model, context: Context) -> ModelRoute:
    """Returns the route that served a request; the model's first route if no route did."""
    header = context.progress.route
    return next((route for route in model.routes if route.header == header), model.routes[0])


def open_attempt(route: ModelRoute, model: Model, context: Context, span: Span) -> Context:
    """Returns the context of an attempt at a route, with a span of its own."""
    kind = SpanKind.CLIENT if route.provider else SpanKind.INTERNAL
    attributes: dict[str, AttributeValue] = {
        "gen_ai.provider.name": route.provider or OWN_PROVIDER,
        "gen_ai.request.model": model.label,
        "antiphon.route": route.label,
        "antiphon.attempt": context.progress.attempts,
    }
    return replace(context, span=span.open(f"attempt {route.label}", kind, attributes))


def close_attempt(span: Span, outcome: str, seconds: float) -> None:
    """Ends the span of an attempt. `outcome`: `ok`, `cancelled`, or the code of its error."""
    if outcome != OK:
        span.fail(outcome)
    span.measure("gen_ai.client.operation.duration", seconds)
    span.close()


def open_retrieval(retrieval: Retrieval, span: Span | None) -> AbstractContextManager[Span | None]:
    """Returns the span of a search in a knowledge table, as a context; None without tracing."""
    attributes = {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.data_source.id": retrieval.table[:LONGEST_NAME],
    }
    return _open_stage("retrieval", span, attributes)


def describe_references(span: Span | None, references: References) -> None:
    """Adds the chunks and notes of a search to its span."""
    if span is None:
        return
    span.add(
        {"antiphon.retrieval.chunks": len(references.chunks), "antiphon.retrieval.notes": references.notes}
    )
    if span.records_content:
        documents = [
            {"id": chunk.id, "score": chunk.score, "content": chunk.text, "title": chunk.title}
            for chunk in references.chunks
        ]
        span.add(
            {
                "gen_ai.retrieval.query.text": references.query,
                "gen_ai.retrieval.documents": json.dumps(documents, ensure_ascii=False),
            }
        )


def open_memory(strategy: MemoryStrategy, span: Span | None) -> AbstractContextManager[Span | None]:
    """Returns the span of a memory strategy, as a context; None without tracing."""
    name = str(strategy.__struct_config__.tag)
    return _open_stage("memory", span, {"antiphon.memory.strategy": name})


@contextmanager
def _open_stage(name: str, span: Span | None, attributes: Attributes) -> Iterator[Span | None]:
    """Yields a span that ends with the block."""
    if span is None:
        yield None
        return
    child = span.open(name, SpanKind.INTERNAL, attributes)
    try:
        yield child
    except AntiphonError as error:
        child.fail(error.code)
        raise
    except BaseException as error:
        child.fail(InternalError.code if isinstance(error, Exception) else "cancelled")
        raise
    finally:
        child.close()


def _encode_prompts(request: GenerationRequest) -> str:
    """Returns the prompts as the conventions' list of messages. Images and recordings are left out."""
    messages: list[dict[str, object]] = []
    for prompt in request.prompts:
        if isinstance(prompt, Conversation):
            messages += map(_describe_message, prompt.messages)
        elif prompt.text is not None:
            messages.append({"role": "user", "parts": [{"type": "text", "content": prompt.text}]})
    return json.dumps(messages, ensure_ascii=False)


def _describe_message(message: Message) -> dict[str, object]:
    parts: list[dict[str, object]] = []
    if message.tool_call_id is not None:
        parts.append({"type": "tool_call_response", "id": message.tool_call_id, "response": message.text})
    elif message.text:
        parts.append({"type": "text", "content": message.text})
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
        for call in message.tool_calls
    ]
    parts += [
        {"type": "blob", "modality": str(part.kind), "mime_type": part.media_type}
        for part in message.content
        if isinstance(part, MediaContent)
    ]
    return {"role": str(message.role), "parts": parts}


def _encode_answer(answer: RecordedAnswer) -> str:
    """Returns the choices as the conventions' list of messages."""
    messages = []
    for choice in answer.list_choices():
        parts: list[dict[str, object]] = []
        if choice.reasoning:
            parts.append({"type": "reasoning", "content": "".join(choice.reasoning)})
        if choice.text:
            parts.append({"type": "text", "content": "".join(choice.text)})
        parts += [
            {"type": "tool_call", "id": call.id, "name": call.name, "arguments": "".join(call.arguments)}
            for call in choice.calls.values()
        ]
        messages.append(
            {"role": "assistant", "parts": parts, "finish_reason": choice.finish_reason or "error"}
        )
    return json.dumps(messages, ensure_ascii=False)
