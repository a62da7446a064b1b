"""The kits see an engine that does not do what it is asked: sampling, scored prompts, the queue, echo."""

import re
from array import array

import pytest

from antiphon.domain.events import CandidateTokens, Finished, PromptScored, Started, TextDelta, TokenScore
from antiphon.domain.fair_queue import FairSemaphore, QueueLimits
from antiphon.domain.values import replace
from antiphon.engines.base import LoadSpec, PromptScores, SequenceFinished, Steps, StopCause, TextPiece
from antiphon.errors import EngineBusy, EngineUnavailable, Overloaded
from antiphon_testing import ScriptedEngine, ScriptedTokenEngine, check_engine, scripted_info
from antiphon_testing.logprob_rules import SCORE_RULES
from antiphon_testing.rules import TokenProbe
from antiphon_testing.sequence_rules import QUEUE_RULES, SAMPLING_RULES
from antiphon_testing.token_kit import SENTENCES

PATIENCE = 2.0
"""Seconds for an engine that is found by waiting for it in vain."""

PATIENT = 30.0
"""Seconds for the others: a machine that stalls breaks no rule."""
BOUNDS = LoadSpec("m", queue=4, queue_per_actor=2)


def deaf_to(**sampling):
    """An engine that leaves these fields of the sampling out."""

    class Deaf(ScriptedTokenEngine):
        def generate(self, request):
            return super().generate(replace(request, sampling=replace(request.sampling, **sampling)))

    return Deaf


class Altered(ScriptedTokenEngine):
    def alter(self, event):
        return event

    async def generate(self, request):
        async for event in super().generate(request):
            if (told := self.alter(event)) is not None:
                yield told


class Partial(Altered):
    def alter(self, event):
        return None if isinstance(event, PromptScores) and event.start > 1 else event


class Shifted(Altered):
    def alter(self, event):
        return replace(event, start=event.start - 1) if isinstance(event, PromptScores) else event


class Flat(Altered):
    """Scores that no distribution has."""

    def alter(self, event):
        if not isinstance(event, PromptScores):
            return event
        return replace(event, alternative_logprobs=bytes(len(event.alternative_logprobs)))


class Ranking(Altered):
    """Counts a token itself among those that are likelier."""

    def alter(self, event):
        if not isinstance(event, PromptScores):
            return event
        return replace(event, ranks=array("i", [rank + 1 for rank in array("i", event.ranks)]).tobytes())


class Estimating(Altered):
    """Says of a prompt something else than of what it generates."""

    def alter(self, event):
        if not isinstance(event, Steps) or not event.logprobs:
            return event
        return replace(event, logprobs=tuple(value - 0.5 for value in event.logprobs))


class Unasked(ScriptedTokenEngine):
    def generate(self, request):
        wanted = 0 if request.prompt_logprobs is None else request.prompt_logprobs
        return super().generate(replace(request, prompt_logprobs=wanted))


class Mistaken(Altered):
    def alter(self, event):
        if isinstance(event, SequenceFinished) and not event.counts.completion_tokens:
            return replace(event, cause=StopCause.END)
        return event


class Endless(ScriptedTokenEngine):
    def _require_queue_space(self, request, group):
        pass


class Strict(ScriptedTokenEngine):
    def _require_queue_space(self, request, group):
        if self._counters.queued >= self._spec.queue:
            raise EngineBusy("full", retry_after=1.0)
        super()._require_queue_space(request, group)


class Vague(ScriptedTokenEngine):
    def _require_queue_space(self, request, group):
        if self._counters.queued >= self._spec.queue and not group.members:
            raise EngineUnavailable("full")
        super()._require_queue_space(request, group)


class Communal(ScriptedTokenEngine):
    def generate(self, request):
        return super().generate(replace(request, actor="everybody"))


class Orderly(ScriptedTokenEngine):
    """First come, first served."""

    def generate(self, request):
        return super().generate(replace(request, priority=0))


class Unfair(ScriptedTokenEngine):
    """Priorities are compared across actors."""

    def __init__(self, *args, **changes):
        super().__init__(*args, **changes)
        self._slots = Anarchic(QueueLimits(self._facts.sequences, 10_000, 10_000))


class Anarchic(FairSemaphore):
    async def acquire(self, actor, clock, priority=0):
        await super().acquire("everybody", clock, priority)

    def release(self, actor, clock):
        super().release("everybody", clock)


BROKEN = {
    "bias": (deaf_to(logit_bias=()), "bias"),
    "allowed": (deaf_to(allowed_token_ids=None), "allowed_token_ids"),
    "banned": (deaf_to(banned=()), "banned token"),
    "least": (deaf_to(min_tokens=0), "first min_tokens"),
    "ends": (deaf_to(ignore_eos=False), "ignore_eos"),
    "frequency": (deaf_to(frequency_penalty=0.0), "penalised"),
    "presence": (deaf_to(presence_penalty=0.0), "penalised"),
    "mirostat": (deaf_to(mirostat=None), "a target near 0"),
    "partial": (Partial, "cover the prompt"),
    "shifted": (Shifted, "cover the prompt"),
    "flat": (Flat, "add up|among the alternatives|likeliest"),
    "ranking": (Ranking, "rank is 1 and as many"),
    "estimating": (Estimating, "scored as a prompt"),
    "unasked": (Unasked, "only when they are requested"),
    "mistaken": (Mistaken, "ends with LENGTH"),
    "endless": (Endless, "refused with EngineBusy"),
    "strict": (Strict, "full"),
    "vague": (Vague, "refused with EngineBusy"),
    "orderly": (Orderly, "lowest priority is admitted first"),
    "unfair": (Unfair, "not take another actor's turn"),
    "communal": (Communal, "of your requests are waiting"),
}


async def examine(engine):
    """The rules that are tried here, on one engine."""
    probe = await TokenProbe.create(engine, 0.0, PATIENCE if isinstance(engine, Endless) else PATIENT)
    probe.prompts = tuple([await engine.tokenize([TextPiece(text)], True) for text in SENTENCES])
    probe.queue, probe.queue_per_actor = BOUNDS.queue, BOUNDS.queue_per_actor
    for rule in (*SAMPLING_RULES, *SCORE_RULES, *QUEUE_RULES):
        await rule(probe)


def engine_of(kind):
    spec = replace(BOUNDS, prefill_chunk=7)
    return kind(info=scripted_info(context_length=256, sequences=2), spec=spec)


async def test_an_honest_engine_passes():
    await examine(engine_of(ScriptedTokenEngine))


@pytest.mark.parametrize("name", BROKEN)
async def test_an_engine_that_does_not_do_as_it_is_asked_is_told_so(name):
    kind, sentence = BROKEN[name]
    with pytest.raises((AssertionError, EngineBusy, Overloaded)) as told:
        await examine(engine_of(kind))
    assert re.search(sentence, str(told.value)), told.value


class Retold(ScriptedEngine):
    """Tells events in its own way."""

    def tell(self, event, output):
        return event

    def _generate_events(self, answer, request, prompt_tokens):
        for event in super()._generate_events(answer, request, prompt_tokens):
            if (told := self.tell(event, request.output)) is not None:
                yield told


class Bare(Retold):
    def tell(self, event, output):
        return replace(event, scores=None) if isinstance(event, Finished) else event


class Displaced(Retold):
    def tell(self, event, output):
        if not isinstance(event, TextDelta):
            return event
        return replace(event, scores=tuple(replace(score, offset=0) for score in event.scores))


class Mute(Retold):
    def tell(self, event, output):
        return None if isinstance(event, TextDelta) and output.echo and not event.tokens else event


class Ranked(Retold):
    def tell(self, event, output):
        return None if isinstance(event, CandidateTokens) else event


class Unscored(Retold):
    def tell(self, event, output):
        if not isinstance(event, TextDelta) or not event.scores or event.tokens:
            return event
        return replace(event, scores=(TokenScore(0, event.text.encode(), None),))


class Nameless(Retold):
    def tell(self, event, output):
        return replace(event, ids=()) if isinstance(event, TextDelta) else event


class Guessing(ScriptedEngine):
    """Scores prompts, and tells no ranks."""

    wanted = None

    async def prepare(self, request, context):
        self.wanted = request.output.prompt_logprobs
        output = replace(request.output, prompt_logprobs=None)
        return await super().prepare(replace(request, output=output), context)

    def _generate_events(self, answer, request, prompt_tokens):
        for event in super()._generate_events(answer, request, prompt_tokens):
            yield event
            if isinstance(event, Started) and self.wanted is not None:
                score = TokenScore(0, b"a", -1.0, ((0, b"a", -1.0),) * self.wanted)
                rest = (score,) * (prompt_tokens - 1)
                yield PromptScored(0, (TokenScore(0, b"a", None), *rest))


BROKEN_ENGINES = {
    Bare: "each Finished has scores",
    Displaced: "begin in its text",
    Mute: "begins with the caller's own text",
    Ranked: "CandidateTokens, deltas and Finished",
    Unscored: "the prompt's tokens are scored",
    Nameless: "ids of the tokens that it counts",
    Guessing: "each score has its rank",
}


@pytest.mark.parametrize("broken", BROKEN_ENGINES, ids=lambda broken: broken.__name__)
async def test_an_engine_that_answers_too_little_is_found(broken):
    async def make():
        return broken()

    with pytest.raises(AssertionError, match=BROKEN_ENGINES[broken]):
        await check_engine(make, patience=PATIENT)
