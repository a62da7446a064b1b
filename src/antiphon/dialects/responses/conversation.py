"""Builds a conversation from the items of the Responses API.

Reasoning, a message of the assistant and the calls between two other items are one message. The result of a
call is directly behind the message with its call, wherever the item is.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from antiphon.bodies.strict_json import sanitize_key
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.media_parts import read_audio, read_file, read_image
from antiphon.dialects.common.request_types import ImageUrlShape
from antiphon.dialects.common.tools import require_shallow
from antiphon.dialects.responses.items import LoadedInput
from antiphon.dialects.responses.tools import INPUT, SEARCH_NAME, describe_tools, join_name
from antiphon.dialects.responses.wire_types import (
    AdditionalToolsItem,
    ConfigurationItem,
    CustomCallItem,
    CustomResultItem,
    FunctionCallItem,
    FunctionResultItem,
    InputAudio,
    InputFile,
    InputImage,
    InputText,
    MessageItem,
    MessagePart,
    OutputText,
    ReasoningItem,
    Refusal,
    ResultPart,
    SearchCallItem,
    StoredItem,
)
from antiphon.domain.messages import (
    CacheControl,
    Content,
    MediaContent,
    Message,
    Role,
    TextContent,
    Tool,
    ToolCall,
)
from antiphon.domain.stored_responses import SealedReasoning
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue, MissingParameter, UnsupportedParameter
from antiphon.wire.responses import LIFETIMES

Unseal = Callable[[str], SealedReasoning | None]
"""Returns the reasoning of a sealed text of this server; None for any other text."""

OTHER_LIFETIMES = {ours: other for other, ours in LIFETIMES.items()}
"""Lifetimes of cached prompts at OpenAI, and the nearest ones of other vendors."""

BETWEEN_TEXTS = "\n\n"
"""What is between the texts of several messages of the assistant in a row."""

CALL_SIGNATURE = "call_signature"
"""The type of a sealed block with the signature of a call. Gemini wants it back, and items of calls have no
place for it."""

SEARCH_ID = "tool_search"
"""The id of a search without an id."""


class _Turn:
    """The assistant's items between two other items."""

    def __init__(self) -> None:
        self.reasoning: list[str] = []
        self.blocks: list[Mapping[str, object]] = []
        self.texts: list[str] = []
        self.calls: list[ToolCall] = []

    def build(self) -> Message:
        signatures = {
            block["call"]: str(block["signature"])
            for block in self.blocks
            if block.get("type") == CALL_SIGNATURE and {"call", "signature"} <= block.keys()
        }
        return Message(
            Role.ASSISTANT,
            BETWEEN_TEXTS.join(self.texts),
            tool_calls=tuple(replace(call, signature=signatures.get(call.id)) for call in self.calls),
            reasoning="\n\n".join(self.reasoning) or None,
            reasoning_field="input[].reasoning",
            thinking_blocks=tuple(
                self._move_block(block) for block in self.blocks if block.get("type") != CALL_SIGNATURE
            ),
        )

    def _move_block(self, block: Mapping[str, object]) -> Mapping[str, object]:
        """Returns a vendor's block with its place in the joined texts. It has that in the vendor's own
        text, which has nothing between them."""
        after = block.get("after")
        place = after.get("text") if isinstance(after, Mapping) else None
        if not isinstance(after, Mapping) or not isinstance(place, int):
            return block
        ends = accumulate(map(len, self.texts[:-1]))
        moved = place + len(BETWEEN_TEXTS) * sum(end < place for end in ends)
        return {**block, "after": {**after, "text": moved}}


class _Talk:
    """The messages of an input, and the results of calls by the message that calls."""

    def __init__(
        self, loaded: LoadedInput, found: Mapping[int, Sequence[Tool]], unseal: Unseal, report: FieldReport
    ) -> None:
        self._found = found
        self._unseal = unseal
        self._report = report
        self._answered = frozenset(
            item.call_id
            for _, item, _ in loaded.list_places()
            if isinstance(item, FunctionResultItem | CustomResultItem)
        )
        """The ids of the calls that have a result."""
        self._messages: list[Message] = []
        self._turn: _Turn | None = None
        self._callers: dict[str, int] = {}
        """By the ids of calls: the index of the message that calls."""
        self._results: dict[int, list[Message]] = {}

    def add(self, index: int, item: StoredItem, path: str) -> None:
        """Adds the next item. `path`: its place for errors. Raises a RequestError."""
        if isinstance(item, MessageItem):
            if item.role == "assistant":
                self._open_turn().texts.append(_join_answer(item.content, path))
            else:
                self._add_message(_build_message(item, path))
        elif isinstance(item, ReasoningItem):
            self._add_reasoning(item, path)
        elif isinstance(item, FunctionCallItem | CustomCallItem) and self._is_dangling(item):
            self._report.paths.append(f"{path}.{item.__struct_config__.tag}")
        elif isinstance(item, FunctionCallItem):
            name = join_name(item.namespace, item.name)
            self._add_call(item.call_id, name, _write_arguments(item.arguments, f"{path}.arguments"))
        elif isinstance(item, CustomCallItem):
            name = join_name(item.namespace, item.name)
            self._add_call(item.call_id, name, json.dumps({INPUT: item.input}, ensure_ascii=False))
        elif isinstance(item, SearchCallItem):
            arguments = item.arguments
            is_text = isinstance(arguments, str | dict)
            written = _write_arguments(arguments if is_text else {}, f"{path}.arguments")
            self._add_call(item.call_id or SEARCH_ID, SEARCH_NAME, written)
        elif isinstance(item, FunctionResultItem | CustomResultItem):
            self._add_result(item.call_id, _read_content(item.output, f"{path}.output"), path)
        elif isinstance(item, ConfigurationItem):
            self._close_turn()
        elif isinstance(item, AdditionalToolsItem):
            if tools := self._found.get(index):
                text = f"You can also call these tools:\n{describe_tools(tools)}"
                self._add_message(Message(Role.DEVELOPER, text))
        else:
            text = describe_tools(self._found.get(index, ())) or "No tool was found."
            self._add_result(item.call_id or SEARCH_ID, (TextContent(text),), path)

    def close(self) -> Iterator[Message]:
        """Yields all messages, each followed by the results of its calls."""
        self._close_turn()
        for index, message in enumerate(self._messages):
            yield message
            yield from self._results.get(index, ())

    def _open_turn(self) -> _Turn:
        if self._turn is None:
            self._turn = _Turn()
        return self._turn

    def _close_turn(self) -> None:
        """Ends the assistant's turn, if there is one. Reasoning alone is left out and named."""
        turn, self._turn = self._turn, None
        if turn is None:
            return
        if turn.texts or turn.calls:
            self._messages.append(turn.build())
        else:
            self._report.paths.append("input[].reasoning")

    def _add_message(self, message: Message) -> None:
        self._close_turn()
        self._messages.append(message)

    def _add_reasoning(self, item: ReasoningItem, path: str) -> None:
        """Adds earlier reasoning: its content, or what is sealed, or its summary."""
        sealed = self._unseal(item.encrypted_content) if item.encrypted_content else None
        if item.encrypted_content and sealed is None:
            self._report.paths.append(f"{path}.encrypted_content")
        text = "".join(part.text for part in item.content or ())
        if not text and sealed is not None:
            text = sealed.text
        if text := text or "\n\n".join(part.text for part in item.summary or ()):
            self._open_turn().reasoning.append(text)
        if sealed is not None and sealed.blocks:
            self._open_turn().blocks += sealed.blocks

    def _is_dangling(self, item: FunctionCallItem | CustomCallItem) -> bool:
        """Whether a call was cut by a limit and has no result. Such a call would have none forever."""
        return item.status == "incomplete" and item.call_id not in self._answered

    def _add_call(self, call_id: str, name: str, arguments: str) -> None:
        self._open_turn().calls.append(ToolCall(call_id, name, arguments))
        self._callers[call_id] = len(self._messages)

    def _add_result(self, call_id: str, content: Sequence[Content], path: str) -> None:
        """Adds the result of a call. Raises InvalidValue if there is no such call before it."""
        caller = self._callers.get(call_id)
        if caller is None:
            raise InvalidValue(
                f"No tool call found for function call output with call_id {sanitize_key(call_id)}.",
                param=f"{path}.call_id",
            )
        if caller == len(self._messages):
            self._close_turn()
        result = _build(Role.TOOL, content, tool_call_id=call_id)
        self._results.setdefault(caller, []).append(result)


def build_messages(
    instructions: str | None,
    loaded: LoadedInput,
    found: Mapping[int, Sequence[Tool]],
    unseal: Unseal,
    report: FieldReport,
) -> tuple[Message, ...]:
    """Builds the messages. `found`: by the indexes of items, the tools that the model learns of there. Adds
    what is left out to `report`. Raises a RequestError."""
    messages = [Message(Role.SYSTEM, instructions)] if instructions else []
    talk = _Talk(loaded, found, unseal, report)
    for index, item, path in loaded.list_places():
        talk.add(index, item, path)
    if not (built := tuple(talk.close())):
        raise InvalidValue("input has no items for the model", param="input")
    return (*messages, *built)


def _build(role: Role, content: Sequence[Content], tool_call_id: str | None = None) -> Message:
    """Builds a message. Its texts are joined as in chats."""
    text = "".join(part.text for part in content if isinstance(part, TextContent))
    is_plain = all(isinstance(part, TextContent) and part.cache_control is None for part in content)
    return Message(role, text, tool_call_id=tool_call_id, content=() if is_plain else tuple(content))


def _build_message(item: MessageItem, path: str) -> Message:
    """Builds a message of the user, the system or the developer. Raises a RequestError."""
    message = _build(Role(item.role), _read_content(item.content, f"{path}.content"))
    if message.mixed_content and item.role != "user":
        raise InvalidValue(f"{path}.content: only a message of the user holds media", param=f"{path}.content")
    return message


def _read_content(
    content: str | Sequence[MessagePart] | Sequence[ResultPart], path: str
) -> tuple[Content, ...]:
    """Reads the parts of a content. Raises a RequestError."""
    if isinstance(content, str):
        return (TextContent(content),)
    parts: list[Content] = []
    follows_file = False
    for index, part in enumerate(content):
        if isinstance(part, InputFile):
            parts += _read_file(part, f"{path}[{index}]", is_first=not parts)
            follows_file = isinstance(parts[-1], TextContent)
            continue
        read = _read_part(part, f"{path}[{index}]")
        if follows_file and isinstance(read, TextContent):
            read = replace(read, text=f"\n\n{read.text}")
        parts.append(read)
        follows_file = False
    return tuple(parts)


def _read_file(part: InputFile, path: str, is_first: bool) -> Iterator[Content]:
    """Yields the name of a file, and its text or the file itself. Empty lines part them from the texts around
    them; those around a document come with its text. Raises a RequestError."""
    for name, value in (("file_id", part.file_id), ("file_url", part.file_url)):
        if value is not None:
            raise UnsupportedParameter(
                f"{path}.{name} is not supported: this server stores and fetches no files; send file_data",
                param=f"{path}.{name}",
            )
    if part.file_data is None:
        raise MissingParameter(f"{path}.file_data is missing", param=f"{path}.file_data")
    file = read_file(part.file_data, f"{path}.file_data")
    lines = [f"[{part.filename}]"] if part.filename else []
    lines += [file] if isinstance(file, str) else []
    if lines:
        text = "\n\n".join(lines)
        yield TextContent(text if is_first else f"\n\n{text}")
    if isinstance(file, MediaContent):
        yield file


def _read_part(part: InputText | OutputText | Refusal | InputImage | InputAudio, path: str) -> Content:
    """Reads one part. Raises a RequestError."""
    if isinstance(part, InputText) and (mark := part.prompt_cache_breakpoint) is not None:
        return TextContent(part.text, CacheControl(mark.ttl and OTHER_LIFETIMES[mark.ttl]))
    if isinstance(part, InputText | OutputText):
        return TextContent(part.text)
    if isinstance(part, Refusal):
        return TextContent(part.refusal)
    if isinstance(part, InputImage):
        if part.file_id is not None:
            raise UnsupportedParameter(
                f"{path}.file_id is not supported: this server stores no files; send image_url",
                param=f"{path}.file_id",
            )
        if part.image_url is None:
            raise MissingParameter(f"{path}.image_url is missing", param=f"{path}.image_url")
        return read_image(ImageUrlShape(part.image_url, part.detail), f"{path}.image_url", None)
    return read_audio(part.input_audio, f"{path}.input_audio")


def _join_answer(content: str | Sequence[MessagePart], path: str) -> str:
    """Returns the text of an earlier answer. Raises InvalidValue for media."""
    parts = _read_content(content, f"{path}.content")
    if any(isinstance(part, MediaContent) for part in parts):
        raise InvalidValue(f"{path}.content: only a message of the user holds media", param=f"{path}.content")
    return "".join(part.text for part in parts if isinstance(part, TextContent))


def _write_arguments(arguments: str | dict[str, object], path: str) -> str:
    """Returns the arguments of a call as text. Raises InvalidValue for an object that is nested too deeply,
    or has a number that is too large for JSON."""
    if isinstance(arguments, str):
        return arguments
    require_shallow(arguments, path)
    try:
        return json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except ValueError:  # 1e999 is read as infinity, which JSON does not have
        raise InvalidValue(f"{path} has a number that is too large", param=path) from None
