"""From events to OpenAI's answers: buffered as one object, streamed as chunks.

A chunk of text is the commonest thing that the server writes, so its bytes around the text are made once for
each choice. They are the bytes that encoding the wire type gives; a test compares them.
"""

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET

from antiphon.dialects.base import Call, ResponseMeta
from antiphon.dialects.common.answers import (
    AssistantMessage,
    CachedTokens,
    ChatChoice,
    ChatCompletion,
    Completion,
    FunctionCall,
    ReasoningTokens,
    TextChoice,
    ToolCallShape,
    UsageShape,
)
from antiphon.dialects.common.errors import encode_error
from antiphon.dialects.common.forms import CHAT_PREFIX, FINISHES, TEXT_PREFIX, Form, Names, Part
from antiphon.dialects.common.logprobs import (
    Spell,
    by_id,
    by_text,
    chat_logprobs,
    prompt_logprobs,
    text_logprobs,
)
from antiphon.domain import events
from antiphon.domain.collect import Choice, Generation
from antiphon.domain.events import (
    DiscardedTokens,
    Event,
    Finished,
    PromptScored,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallBegun,
    ToolCallDelta,
)
from antiphon.domain.request import Conversation, Prompt
from antiphon.domain.usage import Usage
from antiphon.errors import AntiphonError

DONE = b"data: [DONE]\n\n"
SPLIT = "\x00"
"""Stands for the text while a chunk's surroundings are made; as JSON it is unmistakable."""

_encode = msgspec.json.Encoder().encode
_SPLIT = _encode(SPLIT)


def chat_answer(head: ResponseMeta, call: Call, generation: Generation) -> bytes:
    """A buffered chat completion."""
    spell, ids = spelling(call), call.request.output.token_ids
    choices = [
        ChatChoice(
            index=choice.index,
            message=message(choice),
            logprobs=None if choice.scores is None else chat_logprobs(choice.scores, spell),
            finish_reason=FINISHES[choice.reason],
            token_ids=list(choice.ids) if ids else UNSET,
        )
        for choice in generation.choices
    ]
    return _encode(
        ChatCompletion(
            **_names(CHAT_PREFIX, head),
            choices=choices,
            usage=usage_shape(generation.usage),
            prompt_token_ids=list(generation.prompts[0]) if generation.prompts else UNSET,
            **(_scored(generation)[0] if generation.prompt_scores else {}),
        )
    )


def text_answer(head: ResponseMeta, call: Call, generation: Generation) -> bytes:
    """A buffered text completion."""
    output, spell = call.request.output, spelling(call)
    scored = _scored(generation)
    choices = [
        TextChoice(
            index=choice.index,
            text=choice.text,
            logprobs=None
            if choice.scores is None
            else text_logprobs(choice.scores, bool(output.logprobs), spell),
            finish_reason=FINISHES[choice.reason],
            prompt_token_ids=list(generation.prompts[choice.index // output.choices])
            if output.token_ids
            else UNSET,
            token_ids=list(choice.ids) if output.token_ids else UNSET,
            **(scored[choice.index // output.choices] if scored else {}),
        )
        for choice in generation.choices
    ]
    return _encode(
        Completion(**_names(TEXT_PREFIX, head), choices=choices, usage=usage_shape(generation.usage))
    )


def _scored(generation: Generation) -> list[dict[str, Any]]:
    """Of each prompt what its scores add to where they stand; written once, however many choices show it."""
    return [{"prompt_logprobs": prompt_logprobs(scores)} for scores in generation.prompt_scores]


def message(choice: Choice) -> AssistantMessage:
    """What a choice of a chat said."""
    calls = [
        ToolCallShape(id=call.id, function=FunctionCall(call.name, call.arguments)) for call in choice.calls
    ]
    content = None if calls and not choice.text else choice.text
    thought = choice.reasoning or UNSET
    return AssistantMessage(
        content=content, reasoning_content=thought, reasoning=thought, tool_calls=calls or UNSET
    )


def spelling(call: Call) -> Spell:
    """How log-probabilities call tokens."""
    return by_id if call.token_names else by_text


T = TypeVar("T")


class OpenAIChunks(Generic[Part]):
    """One stream: events to data lines, the usage in a chunk without choices, and the two ways to end.

    Where a model may call, a choice is opened with what it says first, as one that only calls has no content.
    Whatever stands in each chunk of a stream that asked for it (token ids, the usage so far) takes it off the
    way of the bytes that are made once."""

    def __init__(self, form: Form[Part], head: ResponseMeta, call: Call) -> None:
        self._form = form
        self._names = _names(form.prefix, head)
        self._include_usage = call.include_usage
        self._choices = len(call.request.prompts) * call.request.output.choices
        self._each = call.request.output.choices
        self._ids = call.request.output.token_ids
        self._counts = call.continuous_usage
        self._is_plain = not (self._ids or self._counts)
        self._so_far = Usage(0, 0)
        self._around: dict[int, tuple[bytes, bytes]] = {}
        self._may_call = any(may_call(prompt) for prompt in call.request.prompts)
        self._prompts: tuple[tuple[int, ...], ...] = ()
        self._told = False
        """Whether the ids of a chat's prompt were told."""
        self._unopened: set[int] = set()
        self._contentless: set[int] = set()
        """Choices whose content is null so far, and which call nothing so far."""

    def encode(self, event: Event) -> bytes:
        if self._may_call and isinstance(event, events.Delta | Finished):
            return self._introduced(event) + self._encoded(event)
        return self._encoded(event)

    def _encoded(self, event: Event) -> bytes:
        match event:
            case TextDelta() if self._is_plain and not event.scores:
                before, after = self._around.get(event.choice) or self._surroundings(event.choice)
                return before + _encode(event.text) + after
            case TextDelta():
                return self._said(event, self._form.text(event.choice, event.text, event.scores))
            case ReasoningDelta():
                return self._said(event, self._form.reasoning(event.choice, event.text, event.scores))
            case ToolCallBegun() | ToolCallDelta():
                return self._said(event, self._form.call(event))
            case Started():
                self._so_far = Usage(event.prompt_tokens, 0, event.cached_tokens)
                self._prompts = event.prompts
                if self._may_call:
                    self._unopened.update(range(self._choices))
                    return b""
                return b"".join(map(self._opened, range(self._choices)))
            case Finished():
                return self.closed(event)
            case Usage():
                return self.counted(event)
            case DiscardedTokens() | PromptScored():
                return b""

    def closed(self, event: Finished) -> bytes:
        """The end of one choice."""
        return self._said(event, self._form.closing(event.choice, event.reason, event.scores or ()))

    def counted(self, usage: Usage) -> bytes:
        """What comes after all choices."""
        return self._chunk([], usage_shape(usage)) if self._include_usage else b""

    def end(self) -> bytes:
        return DONE

    def error(self, error: AntiphonError) -> bytes:
        return b"data: %b\n\n" % encode_error(error)

    def _surroundings(self, choice: int) -> tuple[bytes, bytes]:
        before, after = self._chunk([self._form.text(choice, SPLIT)]).rsplit(_SPLIT, 1)
        self._around[choice] = before, after
        return before, after

    def _introduced(self, event: events.Delta | Finished) -> bytes:
        """What goes before an event of a choice that may call: its opening, and the empty content of one that
        ended without text and calls."""
        choice, opened = event.choice, b""
        if choice in self._unopened:
            self._unopened.discard(choice)
            if isinstance(event, ReasoningDelta | ToolCallBegun):
                self._contentless.add(choice)
            opened = self._opened(choice, None if choice in self._contentless else "")
        if isinstance(event, ReasoningDelta) or choice not in self._contentless:
            return opened
        self._contentless.discard(choice)
        if not isinstance(event, Finished):
            return opened
        empty = self._form.text(choice, "")
        return opened + self._chunk([with_values(empty, token_ids=()) if self._ids else empty])

    def _opened(self, choice: int, content: str | None = "") -> bytes:
        """What a choice begins with; where token ids are asked for, with those of its prompt."""
        opening = self._form.opening(choice, content)
        if not self._ids:
            return b"" if opening is None else self._chunk([opening])
        part = self._form.text(choice, "") if opening is None else opening
        told: dict[str, Any] = {"prompt_token_ids": self._prompts[choice // self._each]}
        if self._form.prompts_apart:
            return self._chunk([with_values(part, **told, token_ids=())])
        first, self._told = not self._told, True
        return self._chunk([with_values(part, token_ids=())], **(told if first else {}))

    def _said(self, event: events.Delta | Finished, part: Part) -> bytes:
        if self._counts:
            made = self._so_far.completion_tokens + event.tokens
            self._so_far = msgspec.structs.replace(self._so_far, completion_tokens=made)
        return self._chunk([with_values(part, token_ids=event.ids) if self._ids else part])

    def _chunk(self, choices: list[Part], usage: UsageShape | None = None, **more: object) -> bytes:
        if self._counts and usage is None:
            usage = usage_shape(self._so_far)
        chunk = self._form.chunk(self._names, choices, usage if self._include_usage else UNSET)
        return b"data: %b\n\n" % _encode(with_values(chunk, **more) if more else chunk)


def may_call(prompt: Prompt) -> bool:
    """Whether what answers a prompt may be calls alone."""
    return isinstance(prompt, Conversation) and prompt.tools is not None and bool(prompt.tools.callable)


def with_values(struct: T, **values: object) -> T:
    """The same struct with more in it."""
    return msgspec.structs.replace(struct, **values)  # type: ignore[type-var]


def _names(prefix: str, head: ResponseMeta) -> Names:
    return {"id": prefix + head.id, "created": head.created, "model": head.model}


def usage_shape(usage: Usage) -> UsageShape:
    """The usage as OpenAI writes it."""
    cached = CachedTokens(usage.cached_tokens)
    thought = ReasoningTokens(usage.reasoning_tokens) if usage.reasoning_tokens else UNSET
    return UsageShape(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, cached, thought)
