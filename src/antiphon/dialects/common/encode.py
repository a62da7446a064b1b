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
from antiphon.dialects.common.forms import CHAT_PREFIX, FINISHES, TEXT_PREFIX, ChunkBuilder, MetaFields, Part
from antiphon.dialects.common.logprobs import (
    TokenSpelling,
    build_chat_logprobs,
    build_text_logprobs,
    encode_prompt_logprobs,
    spell_by_id,
    spell_by_text,
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


def encode_chat(head: ResponseMeta, call: Call, generation: Generation) -> bytes:
    """A buffered chat completion."""
    spell, ids = choose_spelling(call), call.request.output.token_ids
    choices = [
        ChatChoice(
            index=choice.index,
            message=build_message(choice),
            logprobs=None if choice.scores is None else build_chat_logprobs(choice.scores, spell),
            finish_reason=FINISHES[choice.reason],
            token_ids=list(choice.ids) if ids else UNSET,
        )
        for choice in generation.choices
    ]
    return _encode(
        ChatCompletion(
            **build_meta(CHAT_PREFIX, head),
            choices=choices,
            usage=build_usage(generation.usage),
            prompt_token_ids=list(generation.prompts[0]) if generation.prompts else UNSET,
            **(_encode_prompt_scores(generation)[0] if generation.prompt_scores else {}),
        )
    )


def encode_text(head: ResponseMeta, call: Call, generation: Generation) -> bytes:
    """A buffered text completion."""
    output, spell = call.request.output, choose_spelling(call)
    scored = _encode_prompt_scores(generation)
    choices = [
        TextChoice(
            index=choice.index,
            text=choice.text,
            logprobs=None
            if choice.scores is None
            else build_text_logprobs(choice.scores, bool(output.logprobs), spell),
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
        Completion(**build_meta(TEXT_PREFIX, head), choices=choices, usage=build_usage(generation.usage))
    )


def _encode_prompt_scores(generation: Generation) -> list[dict[str, Any]]:
    """Of each prompt what its scores add to where they stand; written once, however many choices show it."""
    return [{"prompt_logprobs": encode_prompt_logprobs(scores)} for scores in generation.prompt_scores]


def build_message(choice: Choice) -> AssistantMessage:
    """What a choice of a chat said."""
    calls = [
        ToolCallShape(id=call.id, function=FunctionCall(call.name, call.arguments)) for call in choice.calls
    ]
    content = None if calls and not choice.text else choice.text
    thought = choice.reasoning or UNSET
    return AssistantMessage(
        content=content, reasoning_content=thought, reasoning=thought, tool_calls=calls or UNSET
    )


def choose_spelling(call: Call) -> TokenSpelling:
    """How log-probabilities call tokens."""
    return spell_by_id if call.token_names else spell_by_text


T = TypeVar("T")


class OpenAIStreamEncoder(Generic[Part]):
    """One stream: events to data lines, the usage in a chunk without choices, and the two ways to end.

    Where a model may call, a choice is opened with what it says first, as one that only calls has no content.
    Whatever stands in each chunk of a stream that asked for it (token ids, the usage so far) takes it off the
    way of the bytes that are made once."""

    def __init__(self, form: ChunkBuilder[Part], head: ResponseMeta, call: Call) -> None:
        self._builder = form
        self._meta = build_meta(form.prefix, head)
        self._include_usage = call.include_usage
        self._choices = len(call.request.prompts) * call.request.output.choices
        self._choices_per_prompt = call.request.output.choices
        self._sends_ids = call.request.output.token_ids
        self._sends_running_usage = call.continuous_usage
        self._is_plain = not (self._sends_ids or self._sends_running_usage)
        self._usage = Usage(0, 0)
        self._surroundings: dict[int, tuple[bytes, bytes]] = {}
        self._may_call = any(allows_calls(prompt) for prompt in call.request.prompts)
        self._prompts: tuple[tuple[int, ...], ...] = ()
        self._has_sent_prompt_ids = False
        """Whether the ids of a chat's prompt were told."""
        self._unopened: set[int] = set()
        self._contentless: set[int] = set()
        """Choices whose content is null so far, and which call nothing so far."""

    def encode(self, event: Event) -> bytes:
        if self._may_call and isinstance(event, events.Delta | Finished):
            return self._encode_before(event) + self._encode_event(event)
        return self._encode_event(event)

    def _encode_event(self, event: Event) -> bytes:
        match event:
            case TextDelta() if self._is_plain and not event.scores:
                before, after = self._surroundings.get(event.choice) or self._split_chunk(event.choice)
                return before + _encode(event.text) + after
            case TextDelta():
                return self._encode_part(
                    event, self._builder.build_text(event.choice, event.text, event.scores)
                )
            case ReasoningDelta():
                return self._encode_part(
                    event, self._builder.build_reasoning(event.choice, event.text, event.scores)
                )
            case ToolCallBegun() | ToolCallDelta():
                return self._encode_part(event, self._builder.build_call(event))
            case Started():
                self._usage = Usage(event.prompt_tokens, 0, event.cached_tokens)
                self._prompts = event.prompts
                if self._may_call:
                    self._unopened.update(range(self._choices))
                    return b""
                return b"".join(map(self._encode_opening, range(self._choices)))
            case Finished():
                return self.encode_finish(event)
            case Usage():
                return self.encode_usage(event)
            case DiscardedTokens() | PromptScored():
                return b""

    def encode_finish(self, event: Finished) -> bytes:
        """The end of one choice."""
        return self._encode_part(
            event, self._builder.build_closing(event.choice, event.reason, event.scores or ())
        )

    def encode_usage(self, usage: Usage) -> bytes:
        """What comes after all choices."""
        return self._encode_chunk([], build_usage(usage)) if self._include_usage else b""

    def end(self) -> bytes:
        return DONE

    def error(self, error: AntiphonError) -> bytes:
        return b"data: %b\n\n" % encode_error(error)

    def _split_chunk(self, choice: int) -> tuple[bytes, bytes]:
        before, after = self._encode_chunk([self._builder.build_text(choice, SPLIT)]).rsplit(_SPLIT, 1)
        self._surroundings[choice] = before, after
        return before, after

    def _encode_before(self, event: events.Delta | Finished) -> bytes:
        """What goes before an event of a choice that may call: its opening, and the empty content of one that
        ended without text and calls."""
        choice, opened = event.choice, b""
        if choice in self._unopened:
            self._unopened.discard(choice)
            if isinstance(event, ReasoningDelta | ToolCallBegun):
                self._contentless.add(choice)
            opened = self._encode_opening(choice, None if choice in self._contentless else "")
        if isinstance(event, ReasoningDelta) or choice not in self._contentless:
            return opened
        self._contentless.discard(choice)
        if not isinstance(event, Finished):
            return opened
        empty = self._builder.build_text(choice, "")
        return opened + self._encode_chunk(
            [replace_fields(empty, token_ids=()) if self._sends_ids else empty]
        )

    def _encode_opening(self, choice: int, content: str | None = "") -> bytes:
        """What a choice begins with; where token ids are asked for, with those of its prompt."""
        opening = self._builder.build_opening(choice, content)
        if not self._sends_ids:
            return b"" if opening is None else self._encode_chunk([opening])
        part = self._builder.build_text(choice, "") if opening is None else opening
        told: dict[str, Any] = {"prompt_token_ids": self._prompts[choice // self._choices_per_prompt]}
        if self._builder.prompts_apart:
            return self._encode_chunk([replace_fields(part, **told, token_ids=())])
        first, self._has_sent_prompt_ids = not self._has_sent_prompt_ids, True
        return self._encode_chunk([replace_fields(part, token_ids=())], **(told if first else {}))

    def _encode_part(self, event: events.Delta | Finished, part: Part) -> bytes:
        if self._sends_running_usage:
            made = self._usage.completion_tokens + event.tokens
            self._usage = msgspec.structs.replace(self._usage, completion_tokens=made)
        return self._encode_chunk([replace_fields(part, token_ids=event.ids) if self._sends_ids else part])

    def _encode_chunk(self, choices: list[Part], usage: UsageShape | None = None, **more: object) -> bytes:
        if self._sends_running_usage and usage is None:
            usage = build_usage(self._usage)
        chunk = self._builder.build_chunk(self._meta, choices, usage if self._include_usage else UNSET)
        return b"data: %b\n\n" % _encode(replace_fields(chunk, **more) if more else chunk)


def allows_calls(prompt: Prompt) -> bool:
    """Whether what answers a prompt may be calls alone."""
    return isinstance(prompt, Conversation) and prompt.tools is not None and bool(prompt.tools.callable)


def replace_fields(struct: T, **values: object) -> T:
    """The same struct with more in it."""
    return msgspec.structs.replace(struct, **values)  # type: ignore[type-var]


def build_meta(prefix: str, head: ResponseMeta) -> MetaFields:
    return {"id": prefix + head.id, "created": head.created, "model": head.model}


def build_usage(usage: Usage) -> UsageShape:
    """The usage as OpenAI writes it."""
    cached = CachedTokens(usage.cached_tokens)
    thought = ReasoningTokens(usage.reasoning_tokens) if usage.reasoning_tokens else UNSET
    return UsageShape(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, cached, thought)
