"""From events to Fireworks' answers: buffered as one object, streamed as chunks of one choice each, the usage
of the whole request beside each choice's end."""

from itertools import pairwise
from typing import Protocol, TypeVar

import msgspec
from msgspec import UNSET

from antiphon.dialects.base import Call, ResponseMeta
from antiphon.dialects.common.answers import Delta, UsageShape
from antiphon.dialects.common.encode import OpenAIChunks, message, usage_shape, with_values
from antiphon.dialects.common.forms import FINISHES, Deltas, Form, MaybeUsage, Names, Texts
from antiphon.dialects.fireworks.answers import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    Logprobs,
    TextChoice,
)
from antiphon.dialects.fireworks.decode import FireworksCall
from antiphon.dialects.fireworks.errors import encode_error
from antiphon.dialects.fireworks.logprobs import array_logprobs, entry_logprobs
from antiphon.domain.collect import Generation
from antiphon.domain.events import Finished, FinishReason
from antiphon.domain.scores import Scores
from antiphon.domain.usage import Usage
from antiphon.errors import AntiphonError

_encode = msgspec.json.Encoder().encode


def text_answer(head: ResponseMeta, call: Call, generation: Generation) -> bytes:
    """A buffered text completion."""
    logprobs, output = Scored(call), call.request.output
    choices = [
        TextChoice(
            index=choice.index,
            text=choice.text,
            logprobs=None if choice.scores is None else logprobs(choice.scores),
            finish_reason=FINISHES[choice.reason],
            prompt_token_ids=list(generation.prompts[choice.index // output.choices])
            if output.token_ids
            else UNSET,
            token_ids=list(choice.ids) if output.token_ids else UNSET,
        )
        for choice in generation.choices
    ]
    return _encode(Completion(**_names(head), choices=choices, usage=usage_shape(generation.usage)))


def chat_answer(head: ResponseMeta, call: Call, generation: Generation) -> bytes:
    """A buffered chat completion."""
    logprobs = Scored(call)
    choices = [
        ChatChoice(
            index=choice.index,
            message=message(choice),
            logprobs=None if choice.scores is None else logprobs(choice.scores),
            finish_reason=FINISHES[choice.reason],
            token_ids=list(choice.ids) if call.request.output.token_ids else UNSET,
        )
        for choice in generation.choices
    ]
    return _encode(
        ChatCompletion(
            **_names(head),
            choices=choices,
            usage=usage_shape(generation.usage),
            prompt_token_ids=list(generation.prompts[0]) if generation.prompts else UNSET,
        )
    )


def _names(head: ResponseMeta) -> Names:
    """The id is a UUID and nothing else."""
    parts = (head.id[begin:end] for begin, end in pairwise((0, 8, 12, 16, 20, None)))
    return {"id": "-".join(parts), "created": head.created, "model": head.model}


class Scored:
    """Log-probabilities in the shape that a call asked for."""

    def __init__(self, call: Call) -> None:
        self._entries = isinstance(call, FireworksCall) and call.entries
        self._ranked = bool(call.request.output.logprobs)

    def __call__(self, scores: Scores) -> Logprobs:
        return entry_logprobs(scores) if self._entries else array_logprobs(scores, self._ranked)


Part = TypeVar("Part")


class FireworksForm(Form[Part], Protocol[Part]):
    """A form that knows of choices which break off."""

    def broken(self, choice: int) -> Part:
        """The end of a choice that failed."""


class ChatForm(Deltas[ChatChunkChoice]):
    """A chat."""

    prefix = ""

    def __init__(self, call: Call) -> None:
        self._logprobs = Scored(call)

    def opening(self, choice: int, content: str | None = "") -> ChatChunkChoice:
        return self.part(choice, Delta(role="assistant", content=content))

    def part(
        self, choice: int, delta: Delta, scores: Scores = (), reason: FinishReason | None = None
    ) -> ChatChunkChoice:
        logprobs = self._logprobs(scores) if scores else None
        finish = None if reason is None else FINISHES[reason]
        return ChatChunkChoice(index=choice, delta=delta, logprobs=logprobs, finish_reason=finish)

    def broken(self, choice: int) -> ChatChunkChoice:
        return ChatChunkChoice(index=choice, delta=Delta(), finish_reason="error")

    def chunk(self, names: Names, choices: list[ChatChunkChoice], usage: MaybeUsage) -> ChatCompletionChunk:
        return ChatCompletionChunk(**names, choices=choices, usage=usage or None)


class TextForm(Texts[TextChoice]):
    """A text completion."""

    prefix = ""

    def __init__(self, call: Call) -> None:
        self._logprobs = Scored(call)

    def part(
        self, choice: int, text: str, scores: Scores = (), reason: FinishReason | None = None
    ) -> TextChoice:
        logprobs = self._logprobs(scores) if scores else None
        finish = None if reason is None else FINISHES[reason]
        return TextChoice(index=choice, text=text, logprobs=logprobs, finish_reason=finish)

    def broken(self, choice: int) -> TextChoice:
        return TextChoice(index=choice, text="", finish_reason="error")

    def chunk(self, names: Names, choices: list[TextChoice], usage: MaybeUsage) -> Completion:
        return Completion(**names, choices=choices, usage=usage or None)


class FireworksChunks(OpenAIChunks[Part]):
    """One stream. The ends of its choices are held back until the usage is known, which each tells."""

    def __init__(self, form: FireworksForm[Part], head: ResponseMeta, call: Call) -> None:
        super().__init__(form, head, call)
        self._names = _names(head)
        self._ends: dict[int, Finished] = {}
        self._broken = form.broken

    def closed(self, event: Finished) -> bytes:
        self._ends[event.choice] = event
        return b""

    def counted(self, usage: Usage) -> bytes:
        shape = usage_shape(usage)
        return b"".join(self._end(event, shape) for event in self._ends.values())

    def error(self, error: AntiphonError) -> bytes:
        """Choices that did not end, end with an error; its sentence follows, and no `[DONE]`."""
        whole = b"".join(self._end(event, None) for event in self._ends.values())
        cut = (choice for choice in range(self._choices) if choice not in self._ends)
        broken = b"".join(self._chunk([self._broken(choice)]) for choice in cut)
        return whole + broken + b"data: %b\n\n" % encode_error(error)

    def _end(self, event: Finished, usage: UsageShape | None) -> bytes:
        part = self._form.closing(event.choice, event.reason, event.scores or ())
        if self._ids:
            part = with_values(part, token_ids=event.ids)
        return self._chunk([part], usage)
