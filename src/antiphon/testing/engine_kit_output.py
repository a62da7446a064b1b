"""The engine's rules about what comes back beside plain text: scores, the prompt said again, the best of
several. An engine that cannot do one of them refuses it with UnsupportedParameter."""

from antiphon.domain.context import Context
from antiphon.domain.events import (
    DiscardedTokens,
    Event,
    Finished,
    FinishReason,
    PromptScored,
    Started,
    TextDelta,
)
from antiphon.domain.request import GenerationRequest, Output, RawPrompt
from antiphon.domain.sampling import AskedSampling
from antiphon.domain.scores import TokenScore
from antiphon.domain.usage import Usage
from antiphon.engines.base import Engine
from antiphon.errors import UnsupportedParameter
from antiphon.testing.rules import require
from antiphon.testing.streaming import open_stream

PROMPT = "Once upon a time, naïve 😀"
WIDTH = 2
"""Alternatives that the rules ask for."""


async def _events(engine: Engine, output: Output) -> list[Event]:
    """Of a greedy request; none when the engine says that it cannot."""
    request = GenerationRequest("any", (RawPrompt(PROMPT),), AskedSampling(temperature=0.0), output)
    try:
        async with open_stream(engine, request, Context("check")) as events:
            return [event async for event in events]
    except UnsupportedParameter:
        return []


def _collect_output(events: list[Event], choice: int = 0) -> tuple[str, list[TokenScore]]:
    """A choice's text and scores; each delta's scores must stand in its text."""
    text = ""
    scores: list[TokenScore] = []
    for event in events:
        if not isinstance(event, TextDelta | Finished) or event.choice != choice:
            continue
        said = event.text if isinstance(event, TextDelta) else ""
        for score in event.scores or ():
            shown = len(text) <= score.offset < len(text) + len(said)
            require(shown or not said, "a delta's scores are those of the tokens that begin in its text")
        text += said
        scores += event.scores or ()
    return text, scores


async def scores_come_as_asked(engine: Engine) -> None:
    silent = await _events(engine, Output(max_tokens=8))
    ends = [event for event in silent if isinstance(event, Finished)]
    rule = "scores come only when they are asked for"
    require(not _collect_output(silent)[1] and all(end.scores is None for end in ends), rule)
    for width in (0, WIDTH):
        events = await _events(engine, Output(max_tokens=8, logprobs=width))
        text, scores = _collect_output(events)
        ends = [event for event in events if isinstance(event, Finished)]
        require(all(end.scores is not None for end in ends), "with logprobs each Finished has scores, or ()")
        require(
            not events or text == _collect_output(silent)[0], "asking for scores does not change what is said"
        )
        _require_scores(text, scores, width)


def _require_scores(text: str, scores: list[TokenScore], width: int) -> None:
    offsets = [score.offset for score in scores]
    require(offsets == sorted(offsets), "scores come in the order of the text")
    require(not scores or offsets[0] == 0, "the first token begins the text")
    shown = b"".join(score.piece for score in scores).decode(errors="ignore")
    whole = text.replace("\ufffd", "")
    require(not scores or whole in shown, "the scored tokens are those of the text")
    for score in scores:
        require(score.logprob is not None and score.logprob <= 1e-4, "log-probabilities are at most 0")
        require(len(score.alternatives) == width, "logprobs=k gives the k likeliest tokens at each place")


async def echo_begins_with_the_prompt(engine: Engine) -> None:
    plain, _ = _collect_output(await _events(engine, Output(max_tokens=8)))
    for logprobs in (None, 0, WIDTH):
        events = await _events(engine, Output(max_tokens=8, choices=2, echo=True, logprobs=logprobs))
        for choice in (0, 1) if events else ():
            text, scores = _collect_output(events, choice)
            require(text.startswith(PROMPT), "with echo each choice begins with the caller's own text")
            require(text.endswith(plain), "echo does not change what is said")
            if logprobs is not None:
                require(scores and scores[0].logprob is None, "a prompt's first token has no log-probability")
                rest = [score for score in scores[1:] if score.offset < len(PROMPT)]
                require(rest, "with echo and logprobs the prompt's tokens are scored")
                require(all(len(score.alternatives) == logprobs for score in rest), "each with alternatives")


async def a_prompt_can_be_scored_alone(engine: Engine) -> None:
    for logprobs in (None, WIDTH):
        events = await _events(engine, Output(max_tokens=0, echo=True, logprobs=logprobs))
        if not events:
            continue
        require(isinstance(events[0], Started), "Started comes first, also when no token is made")
        usage = events[-1]
        require(isinstance(usage, Usage) and usage.completion_tokens == 0, "max_tokens 0 makes no token")
        text, scores = _collect_output(events)
        require(text == PROMPT, "with echo and max_tokens 0 the text is the prompt")
        require(bool(scores) == (logprobs is not None), "a prompt is scored when that is asked for")
        reasons = {event.reason for event in events if isinstance(event, Finished)}
        require(reasons == {FinishReason.LENGTH}, "a prompt alone ends with LENGTH")


async def candidates_are_counted(engine: Engine) -> None:
    one = await _events(engine, Output(max_tokens=8))
    events = await _events(engine, Output(max_tokens=8, choices=2, best_of=4))
    if not events:
        return
    usage, alone = events[-1], one[-1]
    if not isinstance(usage, Usage) or not isinstance(alone, Usage):
        raise AssertionError("Usage comes last")  # noqa: TRY004 - a rule of the kit
    require(usage.prompt_tokens == alone.prompt_tokens, "candidates count their prompt once")
    told = sum(event.tokens for event in events if isinstance(event, TextDelta | Finished | DiscardedTokens))
    require(
        told == usage.completion_tokens,
        "DiscardedTokens, deltas and Finished tell the tokens that Usage sums up",
    )
    require(usage.completion_tokens >= alone.completion_tokens, "every candidate's tokens are counted")
    ended = [event.choice for event in events if isinstance(event, Finished)]
    require(sorted(ended) == [0, 1], "of the candidates the choices are given, numbered anew")


async def ids_are_told_with_the_tokens_that_are_counted(engine: Engine) -> None:
    silent = await _events(engine, Output(max_tokens=8))
    told = [event for event in silent if isinstance(event, Started)]
    rule = "token ids come only when they are asked for"
    require(not any(event.prompts for event in told) and not any(map(_ids, silent)), rule)
    for choices in (1, 2):
        events = await _events(engine, Output(max_tokens=8, choices=choices, token_ids=True))
        for event in events:
            if isinstance(event, TextDelta | Finished):
                require(len(_ids(event)) == event.tokens, "an event tells the ids of the tokens it counts")
            elif isinstance(event, Started):
                lengths = [len(prompt) for prompt in event.prompts]
                require(lengths == [event.prompt_tokens], "Started tells the ids of each prompt")


def _ids(event: Event) -> tuple[int, ...]:
    return event.ids if isinstance(event, TextDelta | Finished) else ()


async def prompts_are_scored_as_asked(engine: Engine) -> None:
    silent = await _events(engine, Output(max_tokens=4, echo=True, logprobs=0))
    rule = "a prompt's scores are told apart only when they are asked for"
    require(not any(isinstance(event, PromptScored) for event in silent), rule)
    for width in (0, WIDTH):
        events = await _events(engine, Output(max_tokens=4, choices=2, prompt_logprobs=width))
        if not events:
            continue
        told = [event for event in events if isinstance(event, PromptScored)]
        require(len(told) == 1 and told[0].prompt == 0, "one PromptScored comes for each prompt")
        usage = events[-1]
        whole = isinstance(usage, Usage) and len(told[0].scores) == usage.prompt_tokens
        require(whole, "a scored prompt has a score for each of its tokens")
        first, *rest = told[0].scores
        require(first.logprob is None and first.rank is None, "a prompt's first token has no score")
        for score in rest:
            require(len(score.alternatives) == width, "each has as many alternatives as were asked for")
            require(score.rank is not None and score.rank >= 1, "each has its rank, which begins at 1")


OUTPUT_RULES = (
    scores_come_as_asked,
    echo_begins_with_the_prompt,
    a_prompt_can_be_scored_alone,
    candidates_are_counted,
    ids_are_told_with_the_tokens_that_are_counted,
    prompts_are_scored_as_asked,
)
