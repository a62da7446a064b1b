"""The conformance kits see what they claim to: an engine that breaks a rule fails with its sentence."""

import asyncio
import re
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from antiphon.domain.events import Finished, Started, TextDelta, Usage
from antiphon.domain.values import replace
from antiphon.engines.base import RequestSize, SequenceFinished, SequenceStarted, Steps, StopCause, TextPiece
from antiphon_testing import (
    Script,
    ScriptedAnswer,
    ScriptedEngine,
    ScriptedTokenEngine,
    check_engine,
    check_token_engine,
    scripted_info,
)
from antiphon_testing.rules import flatten
from antiphon_testing.scripted_engine import ScriptedRequest

PATIENCE = 2.0
"""Seconds for an engine that is found by waiting for it in vain."""

PATIENT = 30.0
"""Seconds for the others: a machine that stalls breaks no rule."""


class Altered(ScriptedTokenEngine):
    """Alters the events of each sequence."""

    def alter(self, event, request):
        return [event]

    async def generate(self, request):
        async for event in super().generate(self.asked(request)):
            for each in self.alter(event, request):
                yield each

    def asked(self, request):
        return request


class Unadmitted(Altered):
    def alter(self, event, request):
        return [] if isinstance(event, SequenceStarted) else [event]


class FinishedTwice(Altered):
    def alter(self, event, request):
        return [event, event] if isinstance(event, SequenceFinished) else [event]


class Miscounting(Altered):
    def alter(self, event, request):
        if not isinstance(event, SequenceFinished):
            return [event]
        return [
            replace(event, counts=replace(event.counts, completion_tokens=event.counts.completion_tokens + 1))
        ]


class Overlong(Altered):
    def asked(self, request):
        return replace(request, max_tokens=request.max_tokens + 1)


class Unstoppable(Altered):
    def asked(self, request):
        return replace(request, stop_token_ids=())


class MislabelledLength(Altered):
    def alter(self, event, request):
        cut = isinstance(event, SequenceFinished) and event.cause is StopCause.LENGTH
        return [replace(event, cause=StopCause.END) if cut else event]


class Credulous(Altered):
    def _read_prompt(self, prompt):
        return tuple(abs(token) % 100 for token in prompt.ids)


class Probabilities(Altered):
    """Gives probabilities instead of their logarithms."""

    def alter(self, event, request):
        if not isinstance(event, Steps):
            return [event]
        return [replace(event, logprobs=tuple(2.718**value for value in event.logprobs))]


class WorstFirst(Altered):
    def alter(self, event, request):
        if not isinstance(event, Steps):
            return [event]
        return [replace(event, alternatives=tuple(row[::-1] for row in event.alternatives))]


class Scaled(Altered):
    """Log-probabilities after temperature."""

    def alter(self, event, request):
        if not isinstance(event, Steps) or not request.sampling.temperature:
            return [event]
        heat = request.sampling.temperature + 1
        rows = tuple(tuple((token, value * heat) for token, value in row) for row in event.alternatives)
        return [replace(event, logprobs=tuple(value * heat for value in event.logprobs), alternatives=rows)]


class Seedless(Altered):
    draws = 0

    def asked(self, request):
        Seedless.draws += 1
        return replace(request, sampling=replace(request.sampling, seed=Seedless.draws))


class OneSeed(Altered):
    def asked(self, request):
        return replace(request, sampling=replace(request.sampling, seed=1))


class Choiceless(Altered):
    def asked(self, request):
        return replace(request, choice=0)


class Crowded(Altered):
    """What else is in the batch enters the draw."""

    def asked(self, request):
        seed = request.sampling.seed + self._counters.running
        return replace(request, sampling=replace(request.sampling, seed=seed))


class Lukewarm(Altered):
    """Draws at temperature 0."""

    def asked(self, request):
        return replace(request, sampling=replace(request.sampling, temperature=1.0))


class Familyless(Altered):
    def asked(self, request):
        return replace(request, group=None)


class Leaking(Altered):
    """Keeps the slot of a sequence that was closed in mid-stream."""

    def _release(self, sequence):
        if sequence.cause is not None:
            super()._release(sequence)


class Slow(Altered):
    """Closing waits for the rest of the prompt."""

    async def _prefill(self, sequence):
        try:
            await asyncio.sleep(0.001)
            await super()._prefill(sequence)
        except asyncio.CancelledError:
            await asyncio.sleep(2 * PATIENCE)
            raise


class Murderous(Altered):
    """Closing the first of a group ends the others."""

    async def generate(self, request):
        if request.group is not None and request.choice == 0 and request.group.startswith("closing"):
            self.killed = False
            try:
                async for event in super().generate(request):
                    yield event
            finally:
                self.killed = True
            return
        async for event in super().generate(request):
            yield event
            if request.group is not None and request.group.startswith("closing") and self.killed:
                await asyncio.sleep(100)


class Parsing(ScriptedTokenEngine):
    """Takes the text of control tokens for control tokens, wherever it stands."""

    async def tokenize(self, pieces, add_bos):
        return await super().tokenize([TextPiece(piece.text, control=True) for piece in pieces], add_bos)


class Joining(ScriptedTokenEngine):
    """Looks for control tokens in the joined text if any piece may hold them."""

    async def tokenize(self, pieces, add_bos):
        leave = any(piece.control for piece in pieces)
        joined = "".join(piece.text for piece in pieces)
        return await super().tokenize([TextPiece(joined, control=leave)], add_bos)


class Piecewise(ScriptedTokenEngine):
    """Tokenizes each piece by itself."""

    async def tokenize(self, pieces, add_bos):
        each = [await super(Piecewise, self).tokenize([piece], False) for piece in pieces]
        bos = (self.table.bos_id,) if add_bos else ()
        return bos + tuple(token for tokens in each for token in tokens)


BROKEN_TOKEN_ENGINES = {
    Unadmitted: "begins with SequenceStarted",
    FinishedTwice: "Steps and nothing else",
    Miscounting: "completion_tokens counts the tokens of Steps",
    Overlong: "at most max_tokens",
    MislabelledLength: "END exactly when the last token",
    Unstoppable: "a stop token ends the sequence",
    Credulous: "refuses ids outside the vocabulary",
    Probabilities: "at most 0",
    WorstFirst: "best first",
    Scaled: "raw distribution",
    Seedless: "equal seeds give equal draws",
    OneSeed: "the seed enters the draw",
    Choiceless: "the choice enters the draw",
    Crowded: "does not depend on the other sequences of the batch",
    Lukewarm: "temperature 0|stop token ends",
    Familyless: "siblings share",
    Leaking: "frees|free|holds no sequence|holds no resources",
    Slow: "closes at once while its prompt",
    Murderous: "siblings go on",
    Parsing: "stays text unless",
    Joining: "put together from several pieces|stays text",
    Piecewise: "tokenized as one text",
}


@pytest.mark.parametrize("broken", BROKEN_TOKEN_ENGINES, ids=lambda broken: broken.__name__)
async def test_a_token_engine_that_breaks_a_rule_is_told_so(broken):
    engine = broken(Script(), info=scripted_info(context_length=256))
    patience = PATIENCE if broken in (Leaking, Slow, Murderous) else PATIENT
    with pytest.raises(AssertionError) as told:
        await check_token_engine(engine, patience=patience)
    assert re.search(BROKEN_TOKEN_ENGINES[broken], str(told.value)), told.value


class Retold(ScriptedEngine):
    """Tells the events of each stream in its own way."""

    @asynccontextmanager
    async def stream(self, request, context):
        async with super().stream(request, context) as events:
            yield self.retold(events)

    async def retold(self, groups):
        async for event in flatten(groups):
            for each in self.told(event):
                yield (each,)

    def told(self, event):
        return [event]


class Silent(Retold):
    def told(self, event):
        return [] if isinstance(event, Started) else [event]


class Unending(Retold):
    def told(self, event):
        return [] if isinstance(event, Finished) and event.choice == 0 else [event]


class Talkative(Retold):
    def told(self, event):
        return [event, TextDelta(event.choice, "more")] if isinstance(event, Finished) else [event]


class Empty(Retold):
    def told(self, event):
        return [event, TextDelta(0, "")] if isinstance(event, Started) else [event]


class Padding(Retold):
    def told(self, event):
        if not isinstance(event, Usage):
            return [event]
        return [structs.replace(event, completion_tokens=event.completion_tokens + 1)]


class Unbilled(Retold):
    def told(self, event):
        return [replace(event, tokens=0)] if isinstance(event, TextDelta) else [event]


class Patient(Retold):
    """Knows no deadline."""

    @asynccontextmanager
    async def stream(self, request, context):
        async with super().stream(request, structs.replace(context, deadline=None)) as events:
            yield events


class Deaf(Retold):
    """Takes its time to end."""

    @asynccontextmanager
    async def stream(self, request, context):
        async with super().stream(request, context) as events:
            try:
                yield events
            finally:
                if request.output.choices == 2 and request.output.max_tokens is None:
                    await asyncio.sleep(2 * PATIENCE)


class Foreign(Retold):
    """Raises what nobody knows."""

    async def prepare(self, request, context):
        if getattr(request.prompts[0], "tokens", None):
            raise ValueError("too long")
        return await super().prepare(request, context)


class Unsized(Retold):
    """Says that a request takes less than it does."""

    async def prepare(self, request, context):
        prepared = await super().prepare(request, context)
        return ScriptedRequest(RequestSize(0, 1), prepared.stream)


class Insatiable(Retold):
    def _generate_events(self, answer, request, prompt_tokens):
        more = replace(request.output, max_tokens=20)
        return super()._generate_events(answer, replace(request, output=more), prompt_tokens)


BROKEN_ENGINES = {
    Silent: "Started comes first",
    Unending: "exactly one Finished",
    Talkative: "nothing of a choice comes after",
    Empty: "never empty",
    Padding: "at most max_tokens|add up to those of Usage",
    Unbilled: "add up to those of Usage",
    Patient: "DeadlineExceeded",
    Deaf: "ends at once|is cheap",
    Foreign: "with an error of antiphon.errors",
    Unsized: "the size is the tokens of all prompts",
    Insatiable: "at most max_tokens",
}


@pytest.mark.parametrize("broken", BROKEN_ENGINES, ids=lambda broken: broken.__name__)
async def test_an_engine_that_breaks_a_rule_is_told_so(broken):
    async def make():
        return broken(ScriptedAnswer(("a", "b"), endless=True))

    with pytest.raises(AssertionError) as told:
        await check_engine(make, patience=PATIENCE if broken is Deaf else PATIENT)
    assert re.search(BROKEN_ENGINES[broken], str(told.value)), told.value
