"""Checks whether an engine satisfies the contract in `antiphon.engines.base`: run `await
check_engine(create_engine)`.

Every rule is one function. The rules about scores, echo and candidates take the engine; the other rules take
an `EngineProbe`. An engine that cannot give scores, echo or candidates must refuse the request with
UnsupportedParameter.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from antiphon.domain.collect import CollectedGeneration, collect
from antiphon.domain.context import Context
from antiphon.domain.events import (
    CandidateTokens,
    Event,
    EventGroup,
    Finished,
    FinishReason,
    PromptScored,
    Started,
    TextDelta,
    TokenScore,
    Usage,
)
from antiphon.domain.messages import Message, Role
from antiphon.domain.models import Load, Profile
from antiphon.domain.request import (
    Conversation,
    GenerationRequest,
    Output,
    Prompt,
    RawPrompt,
    SamplingOptions,
)
from antiphon.domain.values import Struct
from antiphon.engines.base import Engine, EngineState, RequestSize
from antiphon.errors import AntiphonError, DeadlineExceeded, UnsupportedParameter
from antiphon_testing.rules import (
    PATIENCE,
    flatten,
    interrupt,
    open_stream,
    require,
    require_end,
    require_error,
    require_soon,
    run_beside,
)

PROMPT = "Once upon a time, naïve 😀"
WIDTH = 2
"""The number of alternatives that the rules request."""

STORY_PROMPT = RawPrompt("Once upon a time there was a cat that")
OTHER_PROMPT = RawPrompt("Hello world, the dog is in")
GetLoad = Callable[[], Awaitable[Load]]


async def _collect_events(engine: Engine, output: Output) -> list[Event]:
    """Returns the events of a greedy request; an empty list if the engine refuses the output."""
    request = GenerationRequest("any", (RawPrompt(PROMPT),), SamplingOptions(temperature=0.0), output)
    try:
        async with open_stream(engine, request, Context("check")) as groups:
            return [event async for event in flatten(groups)]
    except UnsupportedParameter:
        return []


def _collect_output(events: list[Event], choice: int = 0) -> tuple[str, list[TokenScore]]:
    """Returns the text and the scores of a choice. Requires the scores of each delta to be of tokens in the
    delta's text."""
    text = ""
    scores: list[TokenScore] = []
    for event in events:
        if not isinstance(event, TextDelta | Finished) or event.choice != choice:
            continue
        delta_text = event.text if isinstance(event, TextDelta) else ""
        for score in event.scores or ():
            is_inside = len(text) <= score.offset < len(text) + len(delta_text)
            require(
                is_inside or not delta_text, "a delta's scores are those of the tokens that begin in its text"
            )
        text += delta_text
        scores += event.scores or ()
    return text, scores


async def check_scores(engine: Engine) -> None:
    """Requires scores only if the request asks for them, of the requested width."""
    plain_events = await _collect_events(engine, Output(max_tokens=8))
    ends = [event for event in plain_events if isinstance(event, Finished)]
    rule = "scores come only when they are requested"
    require(not _collect_output(plain_events)[1] and all(end.scores is None for end in ends), rule)
    for width in (0, WIDTH):
        events = await _collect_events(engine, Output(max_tokens=8, logprobs=width))
        text, scores = _collect_output(events)
        ends = [event for event in events if isinstance(event, Finished)]
        require(all(end.scores is not None for end in ends), "with logprobs each Finished has scores, or ()")
        require(
            not events or text == _collect_output(plain_events)[0],
            "requesting scores does not change the text",
        )
        _require_scores(text, scores, width)


def _require_scores(text: str, scores: list[TokenScore], width: int) -> None:
    """Checks that the scores belong to the text, are in order, and have `width` alternatives each."""
    offsets = [score.offset for score in scores]
    require(offsets == sorted(offsets), "scores come in the order of the text")
    require(not scores or offsets[0] == 0, "the first token begins the text")
    scored_text = b"".join(score.piece for score in scores).decode(errors="ignore")
    expected = text.replace("\ufffd", "")
    require(not scores or expected in scored_text, "the scored tokens are those of the text")
    for score in scores:
        require(score.logprob is not None and score.logprob <= 1e-4, "log-probabilities are at most 0")
        require(len(score.alternatives) == width, "logprobs=k gives the k likeliest tokens at each place")


async def check_echo(engine: Engine) -> None:
    """Requires an echoed output to begin with the prompt."""
    plain_text, _ = _collect_output(await _collect_events(engine, Output(max_tokens=8)))
    for logprobs in (None, 0, WIDTH):
        events = await _collect_events(engine, Output(max_tokens=8, choices=2, echo=True, logprobs=logprobs))
        for choice in (0, 1) if events else ():
            text, scores = _collect_output(events, choice)
            require(text.startswith(PROMPT), "with echo each choice begins with the caller's own text")
            require(text.endswith(plain_text), "echo does not change the completion")
            if logprobs is not None:
                require(scores and scores[0].logprob is None, "a prompt's first token has no log-probability")
                rest = [score for score in scores[1:] if score.offset < len(PROMPT)]
                require(rest, "with echo and logprobs the prompt's tokens are scored")
                require(
                    all(len(score.alternatives) == logprobs for score in rest),
                    "each scored token of an echoed prompt has its alternatives",
                )


async def check_prompt_scoring(engine: Engine) -> None:
    for logprobs in (None, WIDTH):
        events = await _collect_events(engine, Output(max_tokens=0, echo=True, logprobs=logprobs))
        if not events:
            continue
        require(isinstance(events[0], Started), "Started comes first, also when no token is made")
        usage = events[-1]
        require(isinstance(usage, Usage) and usage.completion_tokens == 0, "max_tokens 0 makes no token")
        text, scores = _collect_output(events)
        require(text == PROMPT, "with echo and max_tokens 0 the text is the prompt")
        require(bool(scores) == (logprobs is not None), "a prompt is scored when scores are requested")
        reasons = {event.reason for event in events if isinstance(event, Finished)}
        require(reasons == {FinishReason.LENGTH}, "a prompt alone ends with LENGTH")


async def check_candidate_usage(engine: Engine) -> None:
    """Checks that Usage counts the prompt once and the tokens of all candidates."""
    single_events = await _collect_events(engine, Output(max_tokens=8))
    events = await _collect_events(engine, Output(max_tokens=8, choices=2, best_of=4))
    if not events:
        return
    usage, single_usage = events[-1], single_events[-1]
    if not isinstance(usage, Usage) or not isinstance(single_usage, Usage):
        raise AssertionError("Usage comes last")  # noqa: TRY004 - a rule of the kit
    require(usage.prompt_tokens == single_usage.prompt_tokens, "candidates count their prompt once")
    token_count = sum(
        event.tokens for event in events if isinstance(event, TextDelta | Finished | CandidateTokens)
    )
    require(
        token_count == usage.completion_tokens,
        "the tokens of CandidateTokens, deltas and Finished add up to those of Usage",
    )
    require(usage.completion_tokens >= single_usage.completion_tokens, "every candidate's tokens are counted")
    finished_choices = [event.choice for event in events if isinstance(event, Finished)]
    require(sorted(finished_choices) == [0, 1], "the selected candidates are numbered from 0")


async def check_token_ids(engine: Engine) -> None:
    """Requires token ids only if the request asks for them, as many as each event counts."""
    plain_events = await _collect_events(engine, Output(max_tokens=8))
    starts = [event for event in plain_events if isinstance(event, Started)]
    rule = "token ids come only when they are requested"
    require(not any(event.prompts for event in starts) and not any(map(_get_ids, plain_events)), rule)
    for choices in (1, 2):
        events = await _collect_events(engine, Output(max_tokens=8, choices=choices, token_ids=True))
        for event in events:
            if isinstance(event, TextDelta | Finished):
                require(
                    len(_get_ids(event)) == event.tokens, "an event has the ids of the tokens that it counts"
                )
            elif isinstance(event, Started):
                lengths = [len(prompt) for prompt in event.prompts]
                require(lengths == [event.prompt_tokens], "Started has the ids of each prompt")


def _get_ids(event: Event) -> tuple[int, ...]:
    """Returns the token ids of a delta or of Finished; none for other events."""
    return event.ids if isinstance(event, TextDelta | Finished) else ()


async def check_prompt_scores(engine: Engine) -> None:
    plain_events = await _collect_events(engine, Output(max_tokens=4, echo=True, logprobs=0))
    rule = "PromptScored comes only when it is requested"
    require(not any(isinstance(event, PromptScored) for event in plain_events), rule)
    for width in (0, WIDTH):
        events = await _collect_events(engine, Output(max_tokens=4, choices=2, prompt_logprobs=width))
        if not events:
            continue
        scored = [event for event in events if isinstance(event, PromptScored)]
        require(len(scored) == 1 and scored[0].prompt == 0, "one PromptScored comes for each prompt")
        usage = events[-1]
        is_complete = isinstance(usage, Usage) and len(scored[0].scores) == usage.prompt_tokens
        require(is_complete, "a scored prompt has a score for each of its tokens")
        first, *rest = scored[0].scores
        require(first.logprob is None and first.rank is None, "a prompt's first token has no score")
        for score in rest:
            require(len(score.alternatives) == width, "each score has as many alternatives as requested")
            require(score.rank is not None and score.rank >= 1, "each score has its rank, which begins at 1")


OUTPUT_RULES = (
    check_scores,
    check_echo,
    check_prompt_scoring,
    check_candidate_usage,
    check_token_ids,
    check_prompt_scores,
)


async def check_engine(
    create_engine: Callable[[], Awaitable[Engine]], *, load: GetLoad | None = None, patience: float = PATIENCE
) -> None:
    """Raises AssertionError with the sentence of the first rule that the engine breaks.

    `create_engine` returns a ready and idle engine, which the kit closes. `load` returns the engine's load
    counters, if it has any, so that the kit can check whether abandoned streams are gone.
    """
    engine = await create_engine()
    probe = EngineProbe(engine, await engine.profile(), load, patience)
    try:
        for rule in RULES:
            await rule(probe)
            await probe.require_idle(f"an ended stream holds no resources ({rule.__name__})")
        for output_rule in OUTPUT_RULES:
            await output_rule(engine)
            await probe.require_idle(f"an ended stream holds no resources ({output_rule.__name__})")
    finally:
        await require_end(engine.aclose(), "aclose ends all work at once", patience)


class EngineProbe(Struct, frozen=True):
    """The engine under test."""

    engine: Engine
    profile: Profile
    load: GetLoad | None
    patience: float

    def build_request(
        self,
        *prompts: Prompt,
        max_tokens: int | None = 8,
        choices: int = 1,
        sampling: SamplingOptions | None = None,
    ) -> GenerationRequest:
        greedy = SamplingOptions(temperature=0.0)
        return GenerationRequest(
            "any",
            prompts or (STORY_PROMPT,),
            sampling or greedy,
            Output(max_tokens=max_tokens, choices=choices),
        )

    async def collect_events(self, request: GenerationRequest, context: Context | None = None) -> list[Event]:
        async with self.stream(request, context) as groups:
            return [event async for event in flatten(groups)]

    def stream(
        self, request: GenerationRequest, context: Context | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[EventGroup]]:
        return open_stream(self.engine, request, context or Context("check"))

    async def generate(self, request: GenerationRequest) -> CollectedGeneration:
        async with self.stream(request) as groups:
            return await collect(groups)

    async def require_idle(self, rule: str) -> None:
        """Requires the engine to have no work left, if it reports its load."""
        get_load = self.load
        if get_load is None:
            return

        async def is_idle() -> bool:
            load = await get_load()
            return load.running == 0 and load.queued == 0

        await require_soon(is_idle, rule, self.patience)


async def check_event_order(probe: EngineProbe) -> None:
    """Tests one prompt, several choices, and several prompts."""
    requests = (
        probe.build_request(),
        probe.build_request(choices=3),
        probe.build_request(STORY_PROMPT, OTHER_PROMPT, choices=2),
    )
    for request in requests:
        events = await probe.collect_events(request)
        _require_order(events, len(request.prompts) * request.output.choices)


def _require_order(events: list[Event], choices: int) -> None:
    """Checks the order and the number of the events of one request."""
    require(events and isinstance(events[0], Started), "Started comes first")
    require(isinstance(events[-1], Usage), "Usage comes last")
    require(sum(isinstance(event, Started) for event in events) == 1, "there is one Started")
    require(sum(isinstance(event, Usage) for event in events) == 1, "there is one Usage")
    finished: set[int] = set()
    for event in events[1:-1]:
        require(
            isinstance(event, TextDelta | Finished), "between Started and Usage there are deltas and Finished"
        )
        if not isinstance(event, TextDelta | Finished):
            continue
        require(event.choice in range(choices), "a choice has an index below prompts times choices")
        require(event.choice not in finished, "nothing of a choice comes after its Finished")
        if isinstance(event, Finished):
            finished.add(event.choice)
        else:
            require(event.text, "a TextDelta is never empty")
            require(
                event.text.encode(errors="ignore").decode() == event.text, "text holds whole characters only"
            )
    require(finished == set(range(choices)), "each choice has exactly one Finished")


async def check_usage(probe: EngineProbe) -> None:
    answer = await probe.generate(probe.build_request())
    three_choices = await probe.generate(probe.build_request(choices=3))
    both_prompts = await probe.generate(probe.build_request(STORY_PROMPT, OTHER_PROMPT))
    other_prompt = await probe.generate(probe.build_request(OTHER_PROMPT))
    require(answer.usage.prompt_tokens > 0, "prompt tokens are counted")
    require(
        0 < answer.usage.completion_tokens <= 8, "a choice makes at least one token and at most max_tokens"
    )
    require(
        three_choices.usage.prompt_tokens == answer.usage.prompt_tokens, "n choices count their prompt once"
    )
    require(
        answer.usage.completion_tokens <= three_choices.usage.completion_tokens <= 24,
        "each choice's tokens are counted",
    )
    require(
        both_prompts.usage.prompt_tokens == answer.usage.prompt_tokens + other_prompt.usage.prompt_tokens,
        "each prompt is counted once",
    )
    events = await probe.collect_events(probe.build_request(STORY_PROMPT, OTHER_PROMPT))
    token_count = sum(event.tokens for event in events if isinstance(event, TextDelta | Finished))
    require(
        token_count == both_prompts.usage.completion_tokens,
        "the tokens of deltas and Finished add up to those of Usage",
    )
    started = next(event for event in events if isinstance(event, Started))
    require(
        started.prompt_tokens == both_prompts.usage.prompt_tokens, "Started counts the tokens of all prompts"
    )


async def check_max_tokens(probe: EngineProbe) -> None:
    for limit in (1, 5):
        answer = await probe.generate(probe.build_request(max_tokens=limit))
        require(answer.usage.completion_tokens <= limit, "a choice makes at most max_tokens tokens")
        was_cut = answer.choices[0].reason is FinishReason.LENGTH
        require(
            not was_cut or answer.usage.completion_tokens == limit,
            "the reason is LENGTH only when max_tokens was reached",
        )


async def check_greedy_choices(probe: EngineProbe) -> None:
    if not probe.profile.exact:
        return
    answer = await probe.generate(probe.build_request(choices=3))
    require(len({choice.text for choice in answer.choices}) == 1, "choices at temperature 0 are equal")
    require(
        answer.choices[0].text == (await probe.generate(probe.build_request())).choices[0].text,
        "a greedy choice has the same text with and without siblings",
    )


async def check_seeds(probe: EngineProbe) -> None:
    request = probe.build_request(choices=2, sampling=SamplingOptions(temperature=1.3, seed=7))
    first, second = await probe.generate(request), await probe.generate(request)
    require(first.choices == second.choices or not probe.profile.exact, "equal seeds give equal choices")


async def check_conversations(probe: EngineProbe) -> None:
    if probe.profile.chat:
        talk = Conversation((Message(Role.USER, "Hello world"),))
        _require_order(await probe.collect_events(probe.build_request(talk)), 1)


async def check_error_types(probe: EngineProbe) -> None:
    """Requires `prepare` to refuse a prompt that is too long, by an error of `antiphon.errors`."""
    if probe.profile.context_length is None:
        return
    too_long = RawPrompt(tokens=(5,) * (probe.profile.context_length + 1))
    rule = "prepare refuses an impossible request with an error of antiphon.errors"
    await require_error(
        probe.engine.prepare(probe.build_request(too_long), Context("check")),
        AntiphonError,
        rule,
        probe.patience,
    )


async def check_deadlines(probe: EngineProbe) -> None:
    """Requires DeadlineExceeded from a request whose deadline has passed."""
    clock = Context("check").clock
    expired_context = Context("check", deadline=clock.monotonic() - 1)
    work = probe.collect_events(probe.build_request(max_tokens=None), expired_context)
    await require_error(work, DeadlineExceeded, "a passed deadline raises DeadlineExceeded", probe.patience)


async def check_entering(probe: EngineProbe) -> None:
    started = time.monotonic()
    async with probe.stream(probe.build_request()):
        pass
    require(
        time.monotonic() - started < probe.patience,
        "entering and leaving a stream that nobody reads is cheap",
    )


async def check_leaving(probe: EngineProbe) -> None:
    """Leaves before the first event, between two events, while waiting for the next one, and at the end."""
    for delay_s in (0.0, 0.01, 0.1):
        reading = interrupt(probe.collect_events(probe.build_request(max_tokens=None, choices=2)), delay_s)
        await require_end(
            reading, "leaving while waiting for an event ends at once", delay_s + probe.patience
        )
        await probe.require_idle("leaving while waiting for an event frees the engine")
    for event_type in (Started, TextDelta, Finished, Usage):
        started = await _leave_at(probe, event_type)
        require(
            time.monotonic() - started < probe.patience, f"leaving after {event_type.__name__} ends at once"
        )
        await probe.require_idle(f"leaving after {event_type.__name__} frees the engine")


async def _leave_at(probe: EngineProbe, event_type: type[Event]) -> float:
    """Leaves the stream at the first event of a kind. Returns the monotonic seconds at which leaving
    began."""
    limit = None if event_type in (Started, TextDelta) else 4
    async with probe.stream(probe.build_request(max_tokens=limit, choices=2)) as groups:
        async for event in flatten(groups):
            if isinstance(event, event_type):
                break
        return time.monotonic()


async def check_leaving_queue(probe: EngineProbe) -> None:
    """Opens more streams than the engine runs at once. Leaves the last stream while all other streams run,
    and leaves those after it."""
    count = min(probe.profile.sequences or 64, 64) + 1
    async with run_beside(
        *(probe.collect_events(probe.build_request(max_tokens=None)) for _ in range(count - 1))
    ):
        await asyncio.sleep(0)
        last_stream = interrupt(probe.collect_events(probe.build_request(max_tokens=None)), 0.02)
        await require_end(last_stream, "leaving while queued ends at once", probe.patience)


async def check_sizes(probe: EngineProbe) -> None:
    """Checks the size of prompts and choices together, before anything is computed."""
    for request in (probe.build_request(), probe.build_request(STORY_PROMPT, OTHER_PROMPT, choices=2)):
        prepared = await probe.engine.prepare(request, Context("check"))
        await probe.require_idle("preparing a request takes no place")
        async with prepared.stream(Context("check")) as groups:
            usage = [event async for event in flatten(groups)][-1]
        max_tokens = 8 * len(request.prompts) * request.output.choices
        require(
            isinstance(usage, Usage) and prepared.size == RequestSize(usage.prompt_tokens, max_tokens),
            "the size is the tokens of all prompts and the most that all choices can make",
        )


async def check_readiness(probe: EngineProbe) -> None:
    """Requires the state READY, and a context length in a local model's profile."""
    require(probe.engine.state() is EngineState.READY, "the state of an engine that answers is READY")
    length = probe.profile.context_length
    require(
        length > 0 if length is not None else probe.profile.provider is not None,
        "the profile has the context length, unless the model is a vendor's",
    )


RULES = (
    check_readiness,
    check_event_order,
    check_usage,
    check_max_tokens,
    check_greedy_choices,
    check_seeds,
    check_conversations,
    check_error_types,
    check_deadlines,
    check_entering,
    check_leaving,
    check_leaving_queue,
    check_sizes,
)
