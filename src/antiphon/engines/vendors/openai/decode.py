"""Reads OpenAI's answers, whole ones and streams, with their log-probabilities."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from secrets import token_hex
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Raw

from antiphon.domain.events import (
    NO_ID,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Scores,
    SpeechDelta,
    Started,
    TextDelta,
    ThinkingBlock,
    TokenScore,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    UsageSource,
)
from antiphon.domain.messages import measure_speech, measure_text
from antiphon.domain.request import GenerationRequest, Output
from antiphon.engines.vendors.base import (
    StreamFailure,
    VendorError,
    Wire,
    estimate_usage,
    has_content,
    has_value,
    is_possible,
    read_free_json,
)
from antiphon.engines.vendors.openai.wire_types import (
    NO_COMPLETION_DETAILS,
    NO_PROMPT_DETAILS,
    NOTHING,
    AnswerWire,
    ChoiceWire,
    LogprobsWire,
    MessageWire,
    SpeechWire,
    ToolCallWire,
    UsageWire,
    decode_error,
    require_no_error,
)
from antiphon.engines.vendors.parameters import shows_reasoning

TOKEN_NUMBERS = dict[str, float]
"""The alternatives of a token of a text completion, with their log-probabilities."""

DONE = b"[DONE]"

FINISHES: Mapping[str, FinishReason] = MappingProxyType(
    {
        "stop": FinishReason.STOP,
        "eos": FinishReason.STOP,
        "length": FinishReason.LENGTH,
        "model_length": FinishReason.LENGTH,
        "tool_calls": FinishReason.TOOL_CALLS,
        "function_call": FinishReason.TOOL_CALLS,
        "content_filter": FinishReason.CONTENT_FILTER,
    }
)

MAX_UNREPORTED = 65_536
"""The most output tokens that are believed if only `total_tokens` says so, if the caller sets no maximum."""

EMPTY_MESSAGE = MessageWire()

ESTIMATED_START = Started(0, source=UsageSource.ESTIMATED)

JSON_MARK = re.compile(r'\\.|["{}\[\]]', re.DOTALL)
"""An escape, a quotation mark or a bracket in JSON."""

read_answer = msgspec.json.Decoder(AnswerWire).decode
read_text = msgspec.json.Decoder(str).decode


def count_alternatives(output: Output) -> int | None:
    """Returns how many alternatives of a token the caller gets. None means all that the vendor sends."""
    return output.logprobs if output.logprobs is not None and output.logprobs >= 0 else None


def read_scores(
    logprobs: LogprobsWire, offset: int, max_alternatives: int | None = None
) -> Iterator[TokenScore]:
    """Yields the log-probabilities of a choice's new tokens. `offset`: the characters
    before them. `max_alternatives` cuts the alternatives of each token, because some servers send more than
    the request asked for."""
    if logprobs.content is None:
        yield from _read_arrays(logprobs, offset, max_alternatives)
        return
    for token in logprobs.content:
        alternatives = tuple(
            (NO_ID, _get_piece(alternative.token, alternative.bytes), alternative.logprob)
            for alternative in (token.top_logprobs or ())[:max_alternatives]
        )
        yield TokenScore(NO_ID, _get_piece(token.token, token.bytes), token.logprob, alternatives, offset)
        offset += len(token.token)


def _get_piece(token: str, piece: list[int] | None) -> bytes:
    """Returns the bytes of a token."""
    return token.encode() if piece is None else bytes(piece)


def _read_arrays(logprobs: LogprobsWire, offset: int, max_alternatives: int | None) -> Iterator[TokenScore]:
    """Yields the log-probabilities of a text completion, which has an array for each property of tokens."""
    tokens, values = logprobs.tokens or [], logprobs.token_logprobs or []
    top_logprobs = logprobs.top_logprobs or [NOTHING] * len(tokens)
    offsets = _find_offsets(tokens, logprobs.text_offset, offset)
    for token, value, top, token_offset in zip(tokens, values, top_logprobs, offsets, strict=True):
        numbers = read_free_json(top, TOKEN_NUMBERS) if has_value(top) else {}
        ranked = sorted(numbers.items(), key=lambda each: -each[1])
        alternatives = tuple((NO_ID, text.encode(), number) for text, number in ranked[:max_alternatives])
        yield TokenScore(NO_ID, token.encode(), value, alternatives, token_offset)


def _find_offsets(tokens: Sequence[str], reported: Sequence[int] | None, offset: int) -> Iterable[int]:
    """Returns the offset of each token in the text. Uses the server's offsets if they are valid, because
    names of control tokens have a length but are not in the text. Otherwise sums the tokens' lengths. Some
    servers send -1, which is not valid."""
    if reported is not None and len(reported) == len(tokens) and min(reported, default=0) >= 0:
        return reported
    return accumulate(map(len, tokens[:-1]), initial=offset) if tokens else ()


class GoogleContentWire(Wire):
    """Google's part of a call's `extra_content`."""

    thought_signature: str | None = None


class ExtraContentWire(Wire):
    """What vendors add to a call."""

    google: GoogleContentWire | None = None


read_extra_content = msgspec.json.Decoder(ExtraContentWire).decode


class CallReader:
    """One tool call of a choice, as far as it has arrived."""

    __slots__ = ("_depth", "_is_text", "_unread_parts", "has_arguments", "id", "index", "name")

    def __init__(self, index: int, call_id: str, name: str | None) -> None:
        self.name = name
        self.index = index
        """The index of the call in its choice, from 0."""
        self.id = call_id
        """The vendor's id, or empty."""
        self.has_arguments = False
        self._unread_parts: list[str] = []
        """The parts of the arguments whose brackets are not counted yet."""
        self._depth = 0
        """The open brackets in the parts that are counted."""
        self._is_text = False
        """Whether these parts end within a text."""

    def add_arguments(self, part: str) -> None:
        """Adds a part of the arguments."""
        self.has_arguments = True
        self._unread_parts.append(part)

    def has_whole_arguments(self) -> bool:
        """Whether the arguments that have arrived have closed all their brackets. Counts each part once: a
        vendor can send thousands of parts, each of which asks this."""
        arguments = "".join(self._unread_parts)
        # An escape at the end of the parts waits for the character that it belongs to.
        end = len(arguments) - (len(arguments) - len(arguments.rstrip("\\"))) % 2
        for mark in JSON_MARK.findall(arguments, 0, end):
            if mark == '"':
                self._is_text = not self._is_text
            elif self._is_text:
                continue
            elif mark in "{[":
                self._depth += 1
            elif mark in "}]":
                self._depth -= 1
        self._unread_parts = [arguments[end:]] if end < len(arguments) else []
        return self.has_arguments and not self._depth and not self._is_text


class ChoiceReader:
    """Collects the parts of one choice that have arrived."""

    __slots__ = (
        "calls",
        "calls_by_index",
        "finish_reason",
        "has_last_speech",
        "has_scores",
        "is_finished",
        "is_spoken",
        "scores",
        "text_length",
    )

    def __init__(self) -> None:
        self.is_finished = False
        self.is_spoken = False
        """Whether speech has arrived. The last part of speech can follow the finish reason, or come without
        one."""
        self.finish_reason: FinishReason | None = None
        """The finish reason that has arrived. A choice with speech still goes on after it."""
        self.has_last_speech = False
        """Whether the last part of speech has arrived. It contains the time at which the speech expires."""
        self.text_length = 0
        """Characters of text that have arrived, for the offsets of tokens."""
        self.has_scores = False
        """Whether any log-probabilities have arrived."""
        self.scores: list[TokenScore] = []
        """Scores that wait for the next delta."""
        self.calls: list[CallReader] = []
        self.calls_by_index: dict[int, CallReader] = {}
        """The calls by the vendor's own indexes."""

    def find_call(self, call: ToolCallWire, is_part: bool) -> CallReader | None:
        """Returns the call that a wire call continues; None if the wire call begins a new call.

        Some servers send no index, and some send the same index for several calls. A wire call that begins a
        new call has a name and an id of its own.
        """
        is_named = bool(call.function.name)
        if call.index is None:
            if not is_part or not self.calls:
                return None
            last_call = self.calls[-1]
            return None if is_named and (not call.id or call.id != last_call.id) else last_call
        call_reader = self.calls_by_index.get(call.index)
        has_other_id = call_reader is not None and is_named and bool(call.id) and call.id != call_reader.id
        return (
            None
            if call_reader is None or (has_other_id and call_reader.has_whole_arguments())
            else call_reader
        )

    def add_call(self, call: ToolCallWire) -> CallReader:
        """Begins a new call."""
        call_reader = CallReader(len(self.calls), call.id or "", call.function.name)
        self.calls.append(call_reader)
        if call.index is not None:
            self.calls_by_index[call.index] = call_reader
        return call_reader

    def take_scores(self) -> Scores:
        """Removes and returns the scores that wait for the next delta."""
        if not self.scores:
            return ()
        scores, self.scores = tuple(self.scores), []
        return scores


class AnswerReader:
    """Reads the choices of one answer, whole or in chunks, and returns their events."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._max_choices = len(request.prompts) * request.output.choices
        self._shows_reasoning = shows_reasoning(request)
        self._wants_scores = request.output.logprobs is not None
        self._max_alternatives = count_alternatives(request.output)
        self._choices: dict[int, ChoiceReader] = {}
        self._unfinished_choices = self._max_choices
        self._byte_count = 0
        """Bytes of all output so far."""
        self._most_tokens = (request.output.max_tokens or MAX_UNREPORTED) * self._max_choices
        """The most output tokens that are believed if only `total_tokens` says so."""
        self._usage: UsageWire | None = None
        self._has_started = False
        self.is_complete = False

    def feed(self, name: str, data: bytes) -> Sequence[Event]:
        """`StreamDecoder.feed`."""
        if self.is_complete:
            return ()
        if data.startswith(DONE):
            self.is_complete = True
            return ()
        if name == "error":
            raise StreamFailure(decode_error(data))
        return self.read(data)

    def read(self, data: bytes) -> Sequence[Event]:
        """Returns the events of a whole answer or of a chunk. Raises StreamFailure and ValueError."""
        answer = read_answer(data)
        if answer.error or not answer.choices:
            require_no_error(data, answer)
        if answer.usage is not None:
            self._usage = answer.usage
        events: list[Event] = []
        for choice in answer.choices or ():
            events += self._read_choice(choice)
        if events and not self._has_started:
            self._has_started = True
            events.insert(0, ESTIMATED_START)
        return events

    def close(self) -> Sequence[Event]:
        """`StreamDecoder.close`."""
        last_events = [
            end for index, reader in self._choices.items() for end in self._end_speech(index, reader)
        ]
        if self._unfinished_choices:
            raise ValueError("the answer ended before its finish")
        return (*last_events, self._build_usage())

    def _find_reader(self, choice: ChoiceWire, message: MessageWire) -> ChoiceReader | None:
        """Returns the reader of a choice that begins; None for a part without content of a choice that has
        ended or was not asked for. Raises ValueError if such a part has content, or another finish reason
        than before."""
        reader = self._choices.get(choice.index)
        if reader is None and 0 <= choice.index < self._max_choices:
            reader = self._choices[choice.index] = ChoiceReader()
            return reader
        if choice.text or _has_content(message):
            raise ValueError("the answer has a choice that was not asked for, or that goes on after its end")
        if reader is not None and choice.finish_reason:
            _set_finish(choice.finish_reason, reader)
        return None

    def _read_choice(self, choice: ChoiceWire) -> list[Event]:
        """Returns the events of one choice, or of a part of it."""
        events: list[Event] = []
        index, message = choice.index, choice.delta or choice.message or EMPTY_MESSAGE
        reader = self._choices.get(index)
        if reader is None or reader.is_finished:
            reader = self._find_reader(choice, message)
            if reader is None:  # a part without content after the choice's end
                return events
        if choice.logprobs is not None and self._wants_scores:
            reader.has_scores = True
            reader.scores += read_scores(choice.logprobs, reader.text_length, self._max_alternatives)
        if message.thinking_blocks:
            events += [
                ThinkingBlock(index, read_free_json(block, dict[str, Any]))
                for block in message.thinking_blocks
            ]
        reasoning, text = _read_texts(choice, message)
        if reasoning:
            self._byte_count += measure_text(reasoning)
            scores = reader.take_scores()  # hidden reasoning is discarded together with its scores
            if self._shows_reasoning:
                events.append(ReasoningDelta(index, reasoning, scores=scores))
        if text:
            self._byte_count += len(text) if text.isascii() else measure_text(text)
            reader.text_length += len(text)
            events.append(TextDelta(index, text, scores=reader.take_scores() if reader.scores else ()))
        if message.refusal:
            self._byte_count += measure_text(message.refusal)
            reader.text_length += len(message.refusal)
            events.append(TextDelta(index, message.refusal, scores=reader.take_scores(), is_refusal=True))
        if message.audio is not None:
            events += self._read_speech(message.audio, index, reader)
        for call in message.tool_calls or ():
            events += self._read_call(call, index, reader, choice.delta is not None)
        if choice.finish_reason:
            finish_reason = _set_finish(choice.finish_reason, reader)
            if not reader.is_spoken:
                events += self._end_choice(finish_reason, index, reader)
        return events

    def _read_speech(self, speech: SpeechWire, index: int, reader: ChoiceReader) -> Iterator[Event]:
        """Yields the event of speech. Raises ValueError if the request did not ask for speech."""
        if not self._request.vendor_options.wants_speech:
            raise ValueError("the answer has speech that was not asked for")
        data, transcript = speech.data or "", speech.transcript or ""
        if not (speech.id or data or transcript or speech.expires_at):
            return
        self._byte_count += measure_text(transcript) + measure_speech(data)
        reader.is_spoken = True
        reader.has_last_speech = speech.expires_at is not None
        yield SpeechDelta(index, speech.id, data, transcript, speech.expires_at, scores=reader.take_scores())

    def _read_call(
        self, call: ToolCallWire, index: int, reader: ChoiceReader, is_part: bool
    ) -> Iterator[Event]:
        """Yields the events of a call, or of a part of it."""
        call_reader, function = reader.find_call(call, is_part), call.function
        if call_reader is None:
            if not function.name:
                raise ValueError("a call of a tool has no name")
            call_reader = reader.add_call(call)
            call_id = call.id or f"call_{token_hex(12)}"
            signature = _read_signature(call)
            scores = reader.take_scores()
            yield ToolCallStarted(
                index, call_reader.index, call_id, function.name, scores=scores, signature=signature
            )
        if function.name and function.name != call_reader.name:
            raise ValueError("the name of a call changed")
        arguments = read_arguments(function.arguments)
        if arguments:
            self._byte_count += measure_text(arguments)
            call_reader.add_arguments(arguments)
            yield ToolCallDelta(index, call_reader.index, arguments, scores=reader.take_scores())

    def _end_speech(self, index: int, reader: ChoiceReader) -> Iterator[Event]:
        """Yields the end of a choice with speech when the answer has ended. In OpenAI's streams of speech,
        the part with the expiry time can end the choice without a finish reason."""
        if not reader.is_spoken:
            return
        default_reason = FinishReason.TOOL_CALLS if reader.calls else FinishReason.STOP
        reason = reader.finish_reason or (default_reason if reader.has_last_speech else None)
        if reason is not None:
            yield from self._end_choice(reason, index, reader)

    def _end_choice(self, finish_reason: FinishReason, index: int, reader: ChoiceReader) -> list[Event]:
        """Returns the last events of a choice."""
        calls = reader.calls if finish_reason is FinishReason.TOOL_CALLS else ()
        last_events: list[Event] = [
            ToolCallDelta(index, call.index, "{}") for call in calls if not call.has_arguments
        ]
        reader.is_finished = True
        self._unfinished_choices -= 1
        scores = reader.take_scores()
        # Scores of None tell that the server sends no log-probabilities.
        has_scores = self._wants_scores and (reader.has_scores or not reader.text_length)
        last_events.append(Finished(index, finish_reason, scores=scores if has_scores else None))
        return last_events

    def _build_usage(self) -> Usage:
        """Returns the vendor's usage. Returns an estimate if the vendor reported none, or impossible
        numbers."""
        reported = self._usage
        if reported is None or reported.prompt_tokens is None or reported.completion_tokens is None:
            return estimate_usage(self._request, self._byte_count)
        prompt, completion = reported.prompt_tokens, reported.completion_tokens
        prompt_details = reported.prompt_tokens_details or NO_PROMPT_DETAILS
        completion_details = reported.completion_tokens_details or NO_COMPLETION_DETAILS
        reasoning = completion_details.reasoning_tokens or 0
        # xAI and Gemini leave hidden reasoning out of completion_tokens, and bill it. xAI reports it apart.
        hidden = (reported.total_tokens or 0) - prompt - completion
        is_plausible = reasoning == 0 and completion + hidden <= self._most_tokens
        if hidden > 0 and (hidden == reasoning or is_plausible):
            completion += hidden
        usage = Usage(
            prompt,
            completion,
            prompt_details.cached_tokens or reported.prompt_cache_hit_tokens or 0,
            reasoning,
            UsageSource.REPORTED,
            cache_write_tokens=prompt_details.cache_write_tokens or 0,
            prompt_audio_tokens=prompt_details.audio_tokens or 0,
            completion_audio_tokens=completion_details.audio_tokens or 0,
            accepted_prediction_tokens=completion_details.accepted_prediction_tokens or 0,
            rejected_prediction_tokens=completion_details.rejected_prediction_tokens or 0,
        )
        return usage if is_possible(usage) else estimate_usage(self._request, self._byte_count)


def _set_finish(reason: str, reader: ChoiceReader) -> FinishReason:
    """Sets and returns the finish reason of a choice. Raises StreamFailure for a reason that is a failure,
    and ValueError for one that contradicts the choice."""
    finish_reason = FINISHES.get(reason)
    if finish_reason is None:
        raise StreamFailure(VendorError(f"the answer ended with finish_reason {reason}", reason))
    if reader.calls and finish_reason is FinishReason.STOP:
        finish_reason = FinishReason.TOOL_CALLS  # a call by a forced name ends with "stop"
    if finish_reason is FinishReason.TOOL_CALLS and not reader.calls:
        raise ValueError("the answer ended with calls and has none")
    if reader.finish_reason not in (None, finish_reason):
        raise ValueError("the answer has two finish reasons for one choice")
    reader.finish_reason = finish_reason
    return finish_reason


def _read_texts(choice: ChoiceWire, message: MessageWire) -> tuple[str, str]:
    """Returns the reasoning and the text of a choice. Raises ValueError for content that is neither."""
    if message.function_call and has_content(message.function_call):
        raise ValueError("the answer has a call in the older form")
    if message.images and has_content(message.images):
        raise ValueError("the answer has generated images")
    if choice.text is not None:
        return "", choice.text
    reasoning, content = message.reasoning_content or message.reasoning or "", message.content or ""
    if isinstance(content, list):
        if any(part.text is None and part.thinking is None for part in content):
            raise ValueError("the answer has a part that is neither text nor reasoning")
        for part in content:
            thinking = part.thinking or ""
            if not isinstance(thinking, str):
                thinking = "".join([inner.text or "" for inner in thinking])
            reasoning += thinking
        content = "".join([part.text or "" for part in content])
    return reasoning, content


def _has_content(message: MessageWire) -> bool:
    """Whether any field of a message has a value that is not empty."""
    values = [getattr(message, name) for name in message.__struct_fields__]
    return any(has_content(value) if isinstance(value, Raw) else value for value in values)


def read_arguments(arguments: Raw) -> str:
    """Returns the arguments of a call, or a part of them. Raises ValueError if they are neither a text nor an
    object."""
    text = bytes(arguments)
    if not has_value(arguments):
        return ""
    if text.startswith(b"{"):
        return msgspec.json.format(text, indent=-1).decode()
    return read_text(text)


def _read_signature(call: ToolCallWire) -> str | None:
    """Returns the thought signature of a call, which Google sends; None if there is none."""
    if not call.extra_content:
        return None
    try:
        google = read_extra_content(call.extra_content).google
    except msgspec.ValidationError:
        return None
    return None if google is None else google.thought_signature
