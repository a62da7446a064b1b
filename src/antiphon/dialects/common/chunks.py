"""Encodes streams as chunks in OpenAI's form. Other dialects use their own chunk builders.

Most events are text, so the bytes around a text are encoded only once for each choice. A test compares them
with the encoding of the wire type.
"""

from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.common.encode import (
    CHAT_PREFIX,
    FINISH_NAMES,
    TEXT_PREFIX,
    LogprobsBuilder,
    MetaFields,
    TokenSpelling,
    build_chat_logprobs,
    build_extras,
    build_meta,
    build_references,
    build_usage,
    encode_error,
    spell_by_text,
)
from antiphon.dialects.common.response_types import (
    ChatChunkChoice,
    ChatCompletionChunk,
    Completion,
    Delta,
    FunctionPart,
    ReferencesShape,
    SpeechPart,
    TextChoice,
    ToolCallPart,
    UsageShape,
)
from antiphon.dialects.http_types import StreamEncoder
from antiphon.dialects.services import ResponseMeta
from antiphon.domain import events
from antiphon.domain.events import (
    CandidateTokens,
    Event,
    Finished,
    FinishReason,
    PromptScored,
    ReasoningDelta,
    Scores,
    SpeechDelta,
    Started,
    TextDelta,
    ThinkingBlock,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    VendorPart,
)
from antiphon.domain.request import Conversation, Prompt
from antiphon.domain.retrieval import References, UnknownCitations
from antiphon.errors import AntiphonError

DONE = b"data: [DONE]\n\n"

TEXT_PLACEHOLDER = "\x00"
"""A placeholder for the text while the bytes around it are encoded. Its JSON form is unique."""

Part = TypeVar("Part")
"""One choice's part of a chunk."""

MaybeUsage = UsageShape | UnsetType | None


_encode = msgspec.json.Encoder().encode

T = TypeVar("T")

_ENCODED_PLACEHOLDER = _encode(TEXT_PLACEHOLDER)


class ChunkBuilder(Protocol[Part]):
    """Builds the chunks of a stream."""

    prefix: str
    """The prefix of the answer's id."""
    puts_ids_in_choices: bool
    """Whether each choice contains its prompt's token ids. If not, the first chunk contains them."""

    def build_opening(self, choice: int, content: str | None = "") -> Part | None:
        """Builds the first part of a choice; None if the format needs no opening. `content` is None if a call
        or reasoning comes first."""

    def build_text(self, choice: int, text: str, scores: Scores = ()) -> Part:
        """Builds a part with more text of a choice."""

    def build_refusal(self, choice: int, text: str, scores: Scores = ()) -> Part:
        """Builds a part with more of the model's refusal to answer."""

    def build_reasoning(self, choice: int, text: str, scores: Scores = ()) -> Part:
        """Builds a part with more reasoning of a choice."""

    def build_call(self, event: ToolCallStarted | ToolCallDelta) -> Part:
        """Builds the part that starts a call, or adds to the call's arguments."""

    def build_thinking(self, choice: int, blocks: list[Mapping[str, Any]]) -> Part | None:
        """Builds the part with a vendor's blocks of reasoning; None if the format does not have them."""

    def build_speech(self, event: SpeechDelta) -> Part:
        """Builds a part with more of a spoken answer."""

    def build_closing(self, choice: int, reason: FinishReason, scores: Scores = ()) -> Part:
        """Builds the last part of a choice."""

    def build_chunk(self, meta: MetaFields, choices: list[Part], usage: MaybeUsage) -> msgspec.Struct:
        """Builds one event of the stream."""


class BaseChatChunkBuilder(Generic[Part]):
    """Builds a chat's chunks for any dialect: the role first, then text, then the finish reason of each
    choice."""

    puts_ids_in_choices = False

    def build_part(
        self, choice: int, delta: Delta, scores: Scores = (), reason: FinishReason | None = None
    ) -> Part:
        raise NotImplementedError

    def build_opening(self, choice: int, content: str | None = "") -> Part:
        """Builds the part with the assistant's role."""
        return self.build_part(choice, Delta(role="assistant", content=content, refusal=None))

    def build_text(self, choice: int, text: str, scores: Scores = ()) -> Part:
        return self.build_part(choice, Delta(content=text), scores)

    def build_refusal(self, choice: int, text: str, scores: Scores = ()) -> Part:
        return self.build_part(choice, Delta(refusal=text), scores)

    def build_reasoning(self, choice: int, text: str, scores: Scores = ()) -> Part:
        return self.build_part(choice, Delta(reasoning_content=text, reasoning=text), scores)

    def build_call(self, event: ToolCallStarted | ToolCallDelta) -> Part:
        """Builds a chunk with the start of a tool call, or with a part of its arguments."""
        if isinstance(event, ToolCallStarted):
            function = FunctionPart(name=event.name, arguments="")
            tool_call = ToolCallPart(
                index=event.index,
                id=event.id,
                type="function",
                function=function,
                extra_content=build_extras(event.signature),
            )
        else:
            tool_call = ToolCallPart(index=event.index, function=FunctionPart(arguments=event.arguments))
        return self.build_part(event.choice, Delta(tool_calls=[tool_call]), event.scores)

    def build_thinking(self, choice: int, blocks: list[Mapping[str, Any]]) -> Part | None:
        return self.build_part(choice, Delta(thinking_blocks=blocks))

    def build_speech(self, event: SpeechDelta) -> Part:
        part = SpeechPart(
            id=event.id or UNSET,
            data=event.data or UNSET,
            transcript=event.transcript or UNSET,
            expires_at=UNSET if event.expires_at is None else event.expires_at,
        )
        return self.build_part(event.choice, Delta(audio=part), event.scores)

    def build_closing(self, choice: int, reason: FinishReason, scores: Scores = ()) -> Part:
        return self.build_part(choice, Delta(), scores, reason)


class ChatChunkBuilder(BaseChatChunkBuilder[ChatChunkChoice]):
    """Builds OpenAI's chat chunks."""

    prefix = CHAT_PREFIX

    def __init__(self, spell: TokenSpelling = spell_by_text) -> None:
        """`spell` names tokens in log-probabilities."""
        self._spell = spell

    def build_part(
        self, choice: int, delta: Delta, scores: Scores = (), reason: FinishReason | None = None
    ) -> ChatChunkChoice:
        logprobs = build_chat_logprobs(scores, self._spell) if scores else None
        finish_name = None if reason is None else FINISH_NAMES[reason]
        return ChatChunkChoice(index=choice, delta=delta, logprobs=logprobs, finish_reason=finish_name)

    def build_chunk(
        self, meta: MetaFields, choices: list[ChatChunkChoice], usage: MaybeUsage
    ) -> ChatCompletionChunk:
        return ChatCompletionChunk(**meta, choices=choices, usage=usage)


class BaseTextChunkBuilder(Generic[Part]):
    """Builds a text completion's chunks for any dialect: text, then the finish reason of each choice."""

    puts_ids_in_choices = True

    def build_part(
        self, choice: int, text: str, scores: Scores = (), reason: FinishReason | None = None
    ) -> Part:
        raise NotImplementedError

    def build_opening(self, choice: int, content: str | None = "") -> Part | None:
        """Returns None, because a text completion has no opening."""
        return None

    def build_text(self, choice: int, text: str, scores: Scores = ()) -> Part:
        return self.build_part(choice, text, scores)

    def build_refusal(self, choice: int, text: str, scores: Scores = ()) -> Part:
        """Builds a part with a refusal as text. A text completion has no place for it."""
        return self.build_part(choice, text, scores)

    def build_reasoning(self, choice: int, text: str, scores: Scores = ()) -> Part:
        """Builds a part with reasoning as text. It is not used: the answer to a raw prompt is not parsed for
        reasoning."""
        return self.build_part(choice, text, scores)

    def build_call(self, event: ToolCallStarted | ToolCallDelta) -> Part:
        """Builds an empty part. A text completion has no tools."""
        return self.build_part(event.choice, "")

    def build_thinking(self, choice: int, blocks: list[Mapping[str, Any]]) -> Part | None:
        """Returns None, because a text completion has no blocks of reasoning."""
        return None

    def build_speech(self, event: SpeechDelta) -> Part:
        """Builds an empty part. A text completion has no speech."""
        return self.build_part(event.choice, "")

    def build_closing(self, choice: int, reason: FinishReason, scores: Scores = ()) -> Part:
        return self.build_part(choice, "", scores, reason)


class TextChunkBuilder(BaseTextChunkBuilder[TextChoice]):
    """Builds OpenAI's text chunks."""

    prefix = TEXT_PREFIX

    def __init__(self, build_logprobs: LogprobsBuilder) -> None:
        self._build_logprobs = build_logprobs

    def build_part(
        self, choice: int, text: str, scores: Scores = (), reason: FinishReason | None = None
    ) -> TextChoice:
        logprobs = self._build_logprobs(scores) if scores else None
        finish_name = None if reason is None else FINISH_NAMES[reason]
        return TextChoice(index=choice, text=text, logprobs=logprobs, finish_reason=finish_name)

    def build_chunk(self, meta: MetaFields, choices: list[TextChoice], usage: MaybeUsage) -> Completion:
        return Completion(**meta, choices=choices, usage=usage)


class OpenAIStreamEncoder(StreamEncoder, Generic[Part]):
    """Encodes one stream: events as data lines, then the usage in a chunk without choices, then the end.

    If a model can call tools or speak, the opening of a choice is delayed until its first event, because a
    choice with only calls or speech has no content. If each chunk also contains token ids or the usage, no
    bytes are encoded ahead.

    A choice's blocks of reasoning are in one chunk before its end, because clients join texts and calls, but
    keep only the last value of other fields.
    """

    def __init__(self, builder: ChunkBuilder[Part], meta: ResponseMeta, call: GenerationCall) -> None:
        self._builder = builder
        self._meta = build_meta(builder.prefix, meta)
        self._include_usage = call.include_usage
        self._choice_count = len(call.request.prompts) * call.request.output.choices
        self._choices_per_prompt = call.request.output.choices
        self._sends_ids = call.request.output.token_ids
        self._sends_running_usage = call.request.output.running_usage
        self._sends_only_text = not (self._sends_ids or self._sends_running_usage)
        self._usage = Usage(0, 0)
        self._thinking_blocks: dict[int, list[Mapping[str, Any]]] = {}
        """The blocks of reasoning of each choice so far."""
        self._bytes_around_text: dict[int, tuple[bytes, bytes]] = {}
        """For each choice, the bytes of a chunk before and after its text."""
        self._may_lack_text = call.request.vendor_options.wants_speech or any(
            allows_calls(prompt) for prompt in call.request.prompts
        )
        self._prompt_ids: tuple[tuple[int, ...], ...] = ()
        self._has_sent_prompt_ids = False
        """Whether the prompt's token ids were sent."""
        self._unopened_choices: set[int] = set()
        self._choices_without_content: set[int] = set()
        """Opened choices that have no text, no call and no speech so far."""

    def encode(self, event: Event) -> bytes:
        """Encodes one event, after the parts that must precede it."""
        if (
            type(event) is TextDelta
            and not event.scores
            and not event.is_refusal
            and event.choice in self._bytes_around_text
        ):
            before, after = self._bytes_around_text[event.choice]
            return before + _encode(event.text) + after
        if self._may_lack_text and isinstance(event, events.Delta | Finished):
            return self._encode_preceding(event) + self._encode_event(event)
        return self._encode_event(event)

    def _encode_event(self, event: Event) -> bytes:
        match event:
            case TextDelta() if event.is_refusal:
                return self._encode_part(
                    event, self._builder.build_refusal(event.choice, event.text, event.scores)
                )
            case TextDelta() if self._sends_only_text and not event.scores:
                before, after = self._split_chunk(event.choice)
                return before + _encode(event.text) + after
            case TextDelta():
                return self._encode_part(
                    event, self._builder.build_text(event.choice, event.text, event.scores)
                )
            case ReasoningDelta():
                return self._encode_part(
                    event, self._builder.build_reasoning(event.choice, event.text, event.scores)
                )
            case ToolCallStarted() | ToolCallDelta() | SpeechDelta():
                return self._encode_part(event, build_delta(self._builder, event))
            case Started():
                self._usage = Usage(event.prompt_tokens, 0, event.cached_tokens)
                self._prompt_ids = event.prompts
                if self._may_lack_text:
                    self._unopened_choices.update(range(self._choice_count))
                    return b""
                return b"".join(map(self._encode_opening, range(self._choice_count)))
            case Finished():
                return self._encode_blocks(event.choice) + self.encode_finish(event)
            case Usage():
                return self.encode_usage(event)
            case ThinkingBlock() | CandidateTokens() | PromptScored() | References() | UnknownCitations():
                return self._encode_rare(event)
            case VendorPart():
                return b""

    def _encode_rare(
        self, event: ThinkingBlock | CandidateTokens | PromptScored | References | UnknownCitations
    ) -> bytes:
        """Encodes references and unknown citations. Stores a block of reasoning until its choice ends.
        Returns nothing for events that callers do not see."""
        if isinstance(event, References):
            return self.encode_references(event)
        if isinstance(event, UnknownCitations):
            return self.encode_unknown_citations(event)
        if isinstance(event, ThinkingBlock):
            self._thinking_blocks.setdefault(event.choice, []).append(event.block)
        return b""

    def _encode_blocks(self, choice: int) -> bytes:
        """Encodes the blocks of reasoning of one choice; empty if there are none."""
        blocks = self._thinking_blocks.pop(choice, None)
        part = self._builder.build_thinking(choice, blocks) if blocks else None
        return b"" if part is None else self._encode_chunk([part])

    def encode_finish(self, event: Finished) -> bytes:
        """Encodes the end of one choice."""
        return self._encode_part(
            event, self._builder.build_closing(event.choice, event.reason, event.scores or ())
        )

    def encode_references(self, references: References) -> bytes:
        """Encodes the references in a chunk without choices. It is the first chunk."""
        return self._encode_chunk([], references=build_references(references))

    def encode_unknown_citations(self, unknown: UnknownCitations) -> bytes:
        """Encodes unknown citations in a chunk without choices."""
        return self._encode_chunk([], references=ReferencesShape(unknown_citations=list(unknown.numbers)))

    def encode_usage(self, usage: Usage) -> bytes:
        """Encodes the usage after all choices."""
        usage_shape = build_usage(usage) if self._include_usage else None
        return b"" if usage_shape is None else self._encode_chunk([], usage_shape)

    def end(self) -> bytes:
        return DONE

    def encode_error(self, error: AntiphonError) -> bytes:
        return b"data: %b\n\n" % encode_error(error)

    def _split_chunk(self, choice: int) -> tuple[bytes, bytes]:
        """Returns and caches the bytes of a chunk before and after the choice's text."""
        before, after = self._encode_chunk([self._builder.build_text(choice, TEXT_PLACEHOLDER)]).rsplit(
            _ENCODED_PLACEHOLDER, 1
        )
        self._bytes_around_text[choice] = before, after
        return before, after

    def _encode_preceding(self, event: events.Delta | Finished) -> bytes:
        """Encodes the parts that must precede an event if text can be missing: the opening of the choice, and
        empty content at the end of a choice without text, calls and speech."""
        choice, opening = event.choice, b""
        if isinstance(event, ThinkingBlock):
            return opening
        if choice in self._unopened_choices:
            self._unopened_choices.discard(choice)
            is_refusal = isinstance(event, TextDelta) and event.is_refusal
            if is_refusal or isinstance(event, ReasoningDelta | ToolCallStarted | SpeechDelta):
                self._choices_without_content.add(choice)
            opening = self._encode_opening(choice, None if choice in self._choices_without_content else "")
        if isinstance(event, ReasoningDelta) or choice not in self._choices_without_content:
            return opening
        self._choices_without_content.discard(choice)
        if not isinstance(event, Finished):
            return opening
        empty_part = self._builder.build_text(choice, "")
        return opening + self._encode_chunk(
            [replace_fields(empty_part, token_ids=()) if self._sends_ids else empty_part]
        )

    def _encode_opening(self, choice: int, content: str | None = "") -> bytes:
        """Encodes the opening of a choice, with the prompt's token ids if the caller requested them."""
        opening = self._builder.build_opening(choice, content)
        if not self._sends_ids:
            return b"" if opening is None else self._encode_chunk([opening])
        part = self._builder.build_text(choice, "") if opening is None else opening
        fields: dict[str, Any] = {"prompt_token_ids": self._prompt_ids[choice // self._choices_per_prompt]}
        if self._builder.puts_ids_in_choices:
            return self._encode_chunk([replace_fields(part, **fields, token_ids=())])
        is_first, self._has_sent_prompt_ids = not self._has_sent_prompt_ids, True
        return self._encode_chunk([replace_fields(part, token_ids=())], **(fields if is_first else {}))

    def _encode_part(self, event: events.Delta | Finished, part: Part) -> bytes:
        """Encodes a chunk with one part. Adds the event's tokens to the usage and to the part if they are
        requested."""
        if self._sends_running_usage:
            completion_tokens = self._usage.completion_tokens + event.tokens
            self._usage = msgspec.structs.replace(self._usage, completion_tokens=completion_tokens)
        return self._encode_chunk([replace_fields(part, token_ids=event.ids) if self._sends_ids else part])

    def _encode_chunk(self, choices: list[Part], usage: UsageShape | None = None, **fields: object) -> bytes:
        """Encodes one chunk as a data line."""
        if self._sends_running_usage and usage is None:
            usage = build_usage(self._usage)
        chunk = self._builder.build_chunk(self._meta, choices, usage if self._include_usage else UNSET)
        return b"data: %b\n\n" % _encode(replace_fields(chunk, **fields) if fields else chunk)


def build_delta(builder: ChunkBuilder[Part], event: ToolCallStarted | ToolCallDelta | SpeechDelta) -> Part:
    return builder.build_speech(event) if isinstance(event, SpeechDelta) else builder.build_call(event)


def allows_calls(prompt: Prompt) -> bool:
    """Whether the answer to a prompt can consist only of calls."""
    return isinstance(prompt, Conversation) and prompt.tools is not None and bool(prompt.tools.callable)


def replace_fields(struct: T, **values: object) -> T:
    """Returns a copy of the struct with other values of these fields."""
    return msgspec.structs.replace(struct, **values)  # type: ignore[type-var]
