"""Empower's chats: the table of fields, wire types, decoding of requests, and encoding of answers and errors.

The table has the fields of Empower's page and of its former engine, and how Antiphon treats them. Types that
the page does not define are OpenAI's. The chat request has all fields of OpenAI's request; `fields` lists the
supported ones. Defaults are those of Empower's API page. A chunk belongs to one choice.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.dialects.base import GenerationCall, ResponseMeta
from antiphon.dialects.common.chunks import DONE
from antiphon.dialects.common.constraint_fields import read_constraint, shorten_names
from antiphon.dialects.common.decode import read_attribution, read_sampling
from antiphon.dialects.common.encode import (
    FINISH_NAMES,
    build_calls,
    build_extras,
    build_meta,
    get_error_type,
)
from antiphon.dialects.common.field_table import (
    END_USER,
    FieldReport,
    FieldTable,
    RequestField,
    declare_refused,
    declare_supported,
)
from antiphon.dialects.common.messages import build_bare_conversation, filter_messages
from antiphon.dialects.common.request_bodies import convert, read_object
from antiphon.dialects.common.request_types import (
    MAX_MESSAGES,
    MAX_NAME,
    MAX_SEQUENCES,
    MAX_TOOLS,
    ChatCompletionRequest,
    ChatMessage,
    CommonRequest,
    ToolChoiceShape,
    ToolShape,
)
from antiphon.dialects.common.response_types import FinishName, FunctionPart, ToolCallPart, ToolCallShape
from antiphon.dialects.common.tools import filter_tools, read_tools
from antiphon.domain.events import (
    CollectedChoice,
    CollectedGeneration,
    Event,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ThinkingBlock,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    UsageSource,
)
from antiphon.domain.messages import Message, Role, Tools
from antiphon.domain.request import (
    Constraint,
    Conversation,
    GenerationRequest,
    Output,
    Reasoning,
    ReasoningTerms,
    SamplingOptions,
)
from antiphon.domain.values import replace
from antiphon.errors import AntiphonError, InvalidValue, UnsupportedParameter

LONGEST_REVISION = 200
LONGEST_TOKEN = 512
"""The most characters of a hub token. Today's tokens have 37."""

ModelName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]


class ChatRequest(CommonRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /empower/api/v1/chat/completions."""

    messages: str | Annotated[list[str | ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    tools: Annotated[list[ToolShape], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "any", "required"] | ToolChoiceShape | None = None
    parallel_tool_calls: bool | None = None
    include_thinking: bool | None = None


class DeployRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /empower/api/v1/lora."""

    model_name: ModelName
    model_source: Literal["HF_HUB", "LOCAL"]
    hf_revision: Annotated[str, Meta(min_length=1, max_length=LONGEST_REVISION)] | None = None
    hf_token: Annotated[str, Meta(min_length=1, max_length=LONGEST_TOKEN)] | None = None
    name: ModelName | None = None
    base_model_name: ModelName | None = None


class EmpowerUsageShape(Struct, frozen=True):
    """The tokens of the whole request. In a stream of one prompt: the tokens of the prompt and one choice."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AnswerMessage(Struct, frozen=True, kw_only=True):
    """The assistant's message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    """The text; null if the model only called tools."""
    tool_calls: list[ToolCallShape] | UnsetType = UNSET
    thinking_blocks: list[Mapping[str, Any]] | UnsetType = UNSET
    """The vendor's blocks of reasoning with their signatures, if it sent some. Send them back in the
    message."""


class EmpowerChatChoice(Struct, frozen=True, kw_only=True):
    """One complete choice."""

    index: int
    message: AnswerMessage
    finish_reason: FinishName


class ChatAnswer(Struct, frozen=True, kw_only=True):
    """A buffered answer."""

    id: str
    created: int
    model: str
    choices: list[EmpowerChatChoice]
    usage: EmpowerUsageShape | UnsetType
    """The usage; absent if a vendor does not report it."""


class EmpowerDelta(Struct, frozen=True, kw_only=True):
    """The content that a chunk adds to its choice: the role first, then text or calls. The last chunk adds
    nothing."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCallPart] | UnsetType = UNSET
    thinking_blocks: list[Mapping[str, Any]] | UnsetType = UNSET
    """All blocks of the choice, once, before the choice ends."""


class ChunkChoice(Struct, frozen=True, kw_only=True):
    """A part of one choice."""

    index: int
    delta: EmpowerDelta
    finish_reason: FinishName | None = None


class ChatChunk(Struct, frozen=True, kw_only=True):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: EmpowerUsageShape | UnsetType = UNSET
    """The usage, in the last chunk of each choice. With several prompts or a vendor's model, only the last
    chunk of the stream contains it, for all choices together. It is missing if a vendor tells none."""


class FlatError(Struct, frozen=True, kw_only=True):
    """Body of every error response."""

    object: Literal["error"] = "error"
    message: str
    type: str
    param: str | None
    code: str


class StreamedError(Struct, frozen=True):
    """The last event of a stream that broke. OpenAI's clients look for this key, and raise an error."""

    error: FlatError


PREFIX = "/empower/api/v1"


class EmpowerScope(StrEnum):
    """The object that contains a field. The fields of messages and tools are in OpenAI's table."""

    CHAT = f"{PREFIX}/chat/completions"
    DEPLOY = f"{PREFIX}/lora"


CHAT = frozenset({EmpowerScope.CHAT})
DEPLOY = frozenset({EmpowerScope.DEPLOY})

ELSEWHERE = "/v1/chat/completions has it"

FIELDS: tuple[RequestField, ...] = (
    *declare_supported(
        CHAT,
        messages="The conversation as a list of messages, or a text as one message of the user. In a list "
        "of texts, each is a separate prompt.",
        model="Name of a deployed LoRA, or of a base model.",
        n="Choices of each prompt; 1 by default.",
        max_tokens="Most tokens of one choice; 256 by default.",
        temperature="0 to 2, 1 by default. 0 always takes the most likely token.",
        top_p="Only the most likely tokens whose probabilities add up to this; 0 to 1, 1 by default.",
        frequency_penalty="Subtracted from a token's logit for each time that it is in the output; -2 to 2,"
        " 0 by default.",
        presence_penalty="Subtracted from the logit of each token that is in the output; -2 to 2, 0 by "
        "default.",
        ignore_eos="Whether generation continues past the model's end tokens until max_tokens.",
        stream="Whether the answer comes as server-sent events.",
        tools="Functions that the model may call, at most 128.",
        tool_choice="Whether the model calls: auto, none, any or required (it must call), or one tool by "
        "its name.",
        include_thinking="Whether the content begins with the reasoning, as <thinking>...</thinking>. "
        "Refused if the model does not reason.",
        parallel_tool_calls="Whether one turn can make several calls; true by default.",
        response_format="text; json_object: any object, or one of `schema`; json_schema: JSON of a schema. A "
        "local model does not see it, and ignores its name and description. A vendor gets it "
        "unchanged.",
        stop="Texts that end a choice, at most four. They are not part of its text.",
        stop_token_ids="Token ids that end a choice, besides the model's own.",
        seed="The same seed gives the same draws.",
        top_k="Only the k most likely tokens; 0 or -1 keeps all.",
        min_p="Only tokens with at least this share of the probability of the most likely token; 0 "
        "keeps all.",
        repetition_penalty="Divides the positive logits, and multiplies the negative logits, of tokens in "
        "the prompt or the output. Above 0, at most 2; 1 does nothing.",
    ),
    *declare_supported(CHAT, user=END_USER),
    declare_refused("logit_bias", CHAT, "the page says so; /v1/chat/completions has it", {}),
    declare_refused("function_call", CHAT, "the page says so; send tools and tool_choice", "none", "auto"),
    declare_refused("functions", CHAT, "send tools", []),
    declare_refused("max_completion_tokens", CHAT, "send max_tokens"),
    declare_refused(
        "stream_options", CHAT, "usage always comes with each choice's last chunk; leave it out", {}
    ),
    declare_refused("logprobs", CHAT, ELSEWHERE, False),
    declare_refused("top_logprobs", CHAT, ELSEWHERE, 0),
    declare_refused("reasoning_effort", CHAT, ELSEWHERE),
    declare_refused("best_of", CHAT, "/v1/completions has it", 1),
    declare_refused("echo", CHAT, "a conversation is not repeated; /v1/completions has echo", False),
    declare_refused("use_beam_search", CHAT, "beam search is not built; leave it out", False),
    declare_refused("add_generation_prompt", CHAT, ELSEWHERE, True),
    declare_refused("skip_special_tokens", CHAT, ELSEWHERE, True),
    declare_refused("spaces_between_special_tokens", CHAT, ELSEWHERE, True),
    *declare_supported(
        DEPLOY,
        model_name="With HF_HUB a repository, OWNER/REPO or OWNER/REPO:FILE.gguf. With LOCAL the path "
        "of a GGUF adapter or PEFT directory, below a directory that the operator allows.",
        model_source="HF_HUB; or LOCAL, which Empower does not have.",
        hf_revision="A commit, tag or branch; main by default. The server deploys the current commit of it.",
        hf_token="A token of the hub that can read the repository. It is used once and not kept.",
        name="The name that callers send as model; model_name by default.",
        base_model_name="The base model. You can leave it out if there is only one. Empower does not have "
        "this field.",
    ),
)

FIELD_TABLE = FieldTable(FIELDS, tuple(EmpowerScope), endpoints=tuple(EmpowerScope))
TABLES = FIELD_TABLE.tables
filter_fields = FIELD_TABLE.filter


MAX_TOKENS = 256
"""The default of max_tokens on Empower's page."""

DEFAULTS = SamplingOptions(temperature=1.0, top_p=1.0, frequency_penalty=0.0, presence_penalty=0.0)
"""The default sampling options of Empower's page. A model's own defaults do not change them."""

TERMS = ReasoningTerms("include_thinking")


def decode_chat(body: bytes, report_unknown: bool = False, strict: bool = False) -> GenerationCall:
    """Decodes a body of POST /empower/api/v1/chat/completions. `report_unknown`: unknown fields are ignored
    and named instead of refused. `strict`: a schema with a keyword that is not enforced is refused. Raises a
    RequestError."""
    field_report = FieldReport(report_unknown)
    fields = read_object(body)
    _refuse_biases(fields)
    accepted_fields = filter_fields(fields, EmpowerScope.CHAT, report=field_report)
    wire = convert(filter_tools(filter_messages(accepted_fields, field_report), field_report), ChatRequest)
    tools, relaxed = _read_tools(wire, strict)
    relaxed_constraint = read_constraint(wire, strict)
    shows_reasoning = bool(wire.include_thinking)
    reasoning = Reasoning(shown=shows_reasoning, wanted=shows_reasoning, terms=TERMS)
    prompts = tuple(
        replace(prompt, tools=tools, reasoning=reasoning) for prompt in _build_prompts(wire.messages)
    )
    return GenerationCall(
        _build_request(wire, prompts, relaxed_constraint.constraint),
        bool(wire.stream),
        ignored=field_report.names,
        relaxed=shorten_names(relaxed_constraint.relaxed + relaxed),
        attribution=read_attribution(wire.user),
    )


def _refuse_biases(fields: Mapping[str, Any]) -> None:
    """Raises UnsupportedParameter for a logit bias, with the message of Empower's service."""
    if fields.get("logit_bias") not in (None, {}):
        raise UnsupportedParameter("logit_bias is not currently supported", param="logit_bias")


def _build_prompts(messages: str | list[str | ChatMessage]) -> tuple[Conversation, ...]:
    """Builds one prompt for a text, or one for each text of a list. Each text becomes a user message."""
    if isinstance(messages, str):
        return (_build_user_prompt(messages, "messages"),)
    texts = [message for message in messages if isinstance(message, str)]
    if not texts:
        return (
            build_bare_conversation([message for message in messages if isinstance(message, ChatMessage)]),
        )
    if len(texts) < len(messages):
        raise InvalidValue("messages must hold only texts or only objects", param="messages")
    if len(texts) > MAX_SEQUENCES:
        raise InvalidValue(
            f"messages must hold at most {MAX_SEQUENCES} texts; got {len(texts)}", param="messages"
        )
    return tuple(_build_user_prompt(text, f"messages[{index}]") for index, text in enumerate(texts))


def _build_user_prompt(text: str, field: str) -> Conversation:
    """Builds a conversation of one user message. Raises InvalidValue for an empty text."""
    if not text:
        raise InvalidValue(f"{field} is empty; send at least one character", param=field)
    return Conversation((Message(Role.USER, text),))


def _read_tools(wire: ChatRequest, strict: bool) -> tuple[Tools | None, tuple[str, ...]]:
    """Returns the tools and their choice, and the schema keywords that are not enforced. Empower's `any`
    means OpenAI's `required`."""
    return read_tools(
        ChatCompletionRequest(
            model=wire.model,
            messages=[],
            tools=wire.tools,
            tool_choice="required" if wire.tool_choice == "any" else wire.tool_choice,
            parallel_tool_calls=wire.parallel_tool_calls,
        ),
        strict,
    )


def _build_request(
    wire: ChatRequest, prompts: tuple[Conversation, ...], constraint: Constraint | None
) -> GenerationRequest:
    """Builds the request. Raises InvalidValue for too many messages times choices."""
    choices = wire.n or 1
    if len(prompts) * choices > MAX_SEQUENCES:
        raise InvalidValue(f"messages times n must be at most {MAX_SEQUENCES}", param="messages")
    max_tokens = MAX_TOKENS if wire.max_tokens is None else wire.max_tokens
    output = Output(
        max_tokens=max_tokens,
        is_usual=wire.max_tokens is None,
        choices=choices,
        stop=(wire.stop,) if isinstance(wire.stop, str) else tuple(wire.stop or ()),
        stop_token_ids=tuple(wire.stop_token_ids or ()),
        constraint=constraint,
    )
    return GenerationRequest(wire.model, prompts, _read_sampling(wire, max_tokens), output)


def _read_sampling(wire: ChatRequest, max_tokens: int) -> SamplingOptions:
    """Reads the sampling options, with the defaults of Empower's API documentation."""
    sampling = read_sampling(wire, max_tokens)
    return replace(
        sampling,
        temperature=_replace_none(sampling.temperature, DEFAULTS.temperature),
        top_p=_replace_none(sampling.top_p, DEFAULTS.top_p),
        frequency_penalty=_replace_none(sampling.frequency_penalty, DEFAULTS.frequency_penalty),
        presence_penalty=_replace_none(sampling.presence_penalty, DEFAULTS.presence_penalty),
    )


def _replace_none(value: float | None, default: float | None) -> float | None:
    """Returns the value, or the default if the value is None."""
    return default if value is None else value


ID_PREFIX = "cmpl-"
"""The prefix of an answer's id, also for chats."""

THINKING, END_THINKING = "<thinking>", "</thinking>"

_encode = msgspec.json.Encoder().encode


def encode_chat(meta: ResponseMeta, generation: CollectedGeneration) -> bytes:
    """Encodes a buffered answer."""
    choices = [
        EmpowerChatChoice(
            index=choice.index, message=_build_message(choice), finish_reason=FINISH_NAMES[choice.reason]
        )
        for choice in generation.choices
    ]
    return _encode(
        ChatAnswer(**build_meta(ID_PREFIX, meta), choices=choices, usage=_build_usage(generation.usage))
    )


def _build_message(choice: CollectedChoice) -> AnswerMessage:
    """Builds the message of a choice. The reasoning precedes the text, between two markers."""
    calls = build_calls(choice)
    reasoning = f"{THINKING}{choice.reasoning}{END_THINKING}" if choice.reasoning else ""
    content = reasoning + choice.text
    return AnswerMessage(
        content=None if calls and not content else content,
        tool_calls=calls or msgspec.UNSET,
        thinking_blocks=list(choice.thinking_blocks) or msgspec.UNSET,
    )


class EmpowerStreamEncoder:
    """Encodes one stream. With one prompt, the last chunk of each choice contains the choice's usage. With
    several prompts or a vendor, only the last chunk of the stream contains the usage, for all choices
    together. A vendor reports the usage only at the end."""

    def __init__(self, meta: ResponseMeta, call: GenerationCall) -> None:
        self._meta = build_meta(ID_PREFIX, meta)
        prompt_count = len(call.request.prompts)
        self._choice_count = prompt_count * call.request.output.choices
        self._knows_choice_tokens = prompt_count == 1
        """Whether the tokens of each choice are known."""
        self._prompt_tokens = 0
        self._choice_tokens: dict[int, int] = {}
        self._reasoning_choices: set[int] = set()
        """The choices whose reasoning is not closed yet."""
        self._thinking_blocks: dict[int, list[Mapping[str, Any]]] = {}
        self._open_choice_count = self._choice_count
        self._last_finish: Finished | None = None
        """The end of the last choice, until the usage is known."""

    def encode(self, event: Event | ReasoningDelta) -> bytes:
        match event:
            case Started():
                self._prompt_tokens = event.prompt_tokens
                self._knows_choice_tokens &= event.source is not UsageSource.ESTIMATED
                return b"".join(
                    self._encode_delta(choice, EmpowerDelta(role="assistant"))
                    for choice in range(self._choice_count)
                )
            case TextDelta() | ReasoningDelta():
                self._add_tokens(event.choice, event.tokens)
                return self._encode_delta(event.choice, EmpowerDelta(content=self._mark_reasoning(event)))
            case ToolCallStarted() | ToolCallDelta():
                self._add_tokens(event.choice, event.tokens)
                return self._close_reasoning(event.choice) + self._encode_delta(
                    event.choice, _build_call_delta(event)
                )
            case ThinkingBlock():
                self._thinking_blocks.setdefault(event.choice, []).append(event.block)
            case Finished():
                return (
                    self._close_reasoning(event.choice)
                    + self._encode_blocks(event.choice)
                    + self._encode_finish(event)
                )
            case Usage():
                return (
                    self._encode_last_chunk(self._last_finish, _build_usage(event))
                    if self._last_finish
                    else b""
                )
        return b""

    def end(self) -> bytes:
        return DONE

    def encode_error(self, error: AntiphonError) -> bytes:
        return b"data: %b\n\n" % encode_streamed_error(error)

    def _add_tokens(self, choice: int, tokens: int) -> None:
        """Adds to the number of tokens of a choice."""
        self._choice_tokens[choice] = self._choice_tokens.get(choice, 0) + tokens

    def _mark_reasoning(self, event: TextDelta | ReasoningDelta) -> str:
        """Returns the event's text, with a marker before it if the reasoning starts or ends here."""
        is_open = event.choice in self._reasoning_choices
        if isinstance(event, ReasoningDelta):
            self._reasoning_choices.add(event.choice)
            return event.text if is_open else THINKING + event.text
        self._reasoning_choices.discard(event.choice)
        return END_THINKING + event.text if is_open else event.text

    def _close_reasoning(self, choice: int) -> bytes:
        """Returns a chunk that closes the choice's reasoning; empty if it is not open."""
        if choice not in self._reasoning_choices:
            return b""
        self._reasoning_choices.remove(choice)
        return self._encode_delta(choice, EmpowerDelta(content=END_THINKING))

    def _encode_blocks(self, choice: int) -> bytes:
        """Returns a chunk with the choice's blocks of reasoning; empty if there are none."""
        blocks = self._thinking_blocks.pop(choice, None)
        return self._encode_delta(choice, EmpowerDelta(thinking_blocks=blocks)) if blocks else b""

    def _encode_finish(self, event: Finished) -> bytes:
        """Encodes the end of a choice. If the tokens of each choice are unknown, the end of the last choice
        waits for the usage."""
        self._add_tokens(event.choice, event.tokens)
        self._open_choice_count -= 1
        if self._knows_choice_tokens:
            tokens = self._choice_tokens[event.choice]
            return self._encode_last_chunk(
                event, EmpowerUsageShape(self._prompt_tokens, tokens, self._prompt_tokens + tokens)
            )
        if self._open_choice_count:
            return self._encode_last_chunk(event, msgspec.UNSET)
        self._last_finish = event
        return b""

    def _encode_last_chunk(self, event: Finished, usage: EmpowerUsageShape | msgspec.UnsetType) -> bytes:
        """Encodes the last chunk of a choice."""
        part = ChunkChoice(index=event.choice, delta=EmpowerDelta(), finish_reason=FINISH_NAMES[event.reason])
        return self._encode_chunk(part, usage)

    def _encode_delta(self, choice: int, delta: EmpowerDelta) -> bytes:
        """Encodes a chunk with this delta."""
        return self._encode_chunk(ChunkChoice(index=choice, delta=delta), msgspec.UNSET)

    def _encode_chunk(self, part: ChunkChoice, usage: EmpowerUsageShape | msgspec.UnsetType) -> bytes:
        """Encodes one chunk as a data line."""
        return b"data: %b\n\n" % _encode(ChatChunk(**self._meta, choices=[part], usage=usage))


def _build_call_delta(event: ToolCallStarted | ToolCallDelta) -> EmpowerDelta:
    """Builds the delta that starts a call with the whole name, or adds to the call's arguments."""
    if isinstance(event, ToolCallStarted):
        function = FunctionPart(name=event.name, arguments="")
        return EmpowerDelta(
            tool_calls=[
                ToolCallPart(
                    index=event.index,
                    id=event.id,
                    type="function",
                    function=function,
                    extra_content=build_extras(event.signature),
                )
            ]
        )
    return EmpowerDelta(
        tool_calls=[ToolCallPart(index=event.index, function=FunctionPart(arguments=event.arguments))]
    )


def _build_usage(usage: Usage) -> EmpowerUsageShape | msgspec.UnsetType:
    """Builds the usage in Empower's form. Returns UNSET for an estimate."""
    if usage.source is UsageSource.ESTIMATED:
        return msgspec.UNSET
    return EmpowerUsageShape(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)


def encode_flat_error(error: AntiphonError) -> bytes:
    """Encodes an error as `{"object": "error", "message", "type", "param", "code"}`."""
    return _encode(_build_error(error))


def encode_streamed_error(error: AntiphonError) -> bytes:
    """Encodes an error in the same form, under the key `error`."""
    return _encode(StreamedError(_build_error(error)))


def _build_error(error: AntiphonError) -> FlatError:
    """Builds the error in Empower's form."""
    return FlatError(message=error.message, type=get_error_type(error), param=error.param, code=error.code)
