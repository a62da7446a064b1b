"""Streams a prepared request, whose prompts are token ids that fit the context.

The stream runs one sequence for each choice, and merges the events of all sequences. `choice_decoder`
converts tokens to text. `logprobs` adds log-probabilities, ranks candidates and repeats the prompt.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager

from antiphon.domain.context import Clock, Context, EngineReport
from antiphon.domain.events import Event, EventGroup, Started, Usage
from antiphon.domain.messages import MediaKind
from antiphon.domain.request import GenerationRequest
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import MediaEngine, PromptTokens, RequestSize, TokenEngine, TokenRequest
from antiphon.errors import EngineDied, EngineUnavailable
from antiphon.rendering.choice_decoder import ChoiceDecoder, build_decode_options
from antiphon.rendering.context_window import FittedPrompt
from antiphon.rendering.echo import generate_nothing, repeat_prompt
from antiphon.rendering.logprobs import ScoredDecoder, ScoreOptions, choose_best
from antiphon.rendering.model_info import ModelInfo
from antiphon.rendering.output_parser import OutputParser
from antiphon.rendering.streams import build_deadline_error, enforce_deadline, merge

RETRY_AFTER = 1.0
"""Seconds until a caller should retry if the engine restarted after the request was prepared."""


class ReadyRequest(Struct, frozen=True):
    """A prepared request with everything that the renderer derived from it."""

    original: GenerationRequest
    """The request as the caller sent it."""
    request: GenerationRequest
    """The request with the constraint that its tools add."""
    model_info: ModelInfo
    fitted_prompts: Sequence[FittedPrompt]
    shared_request: TokenRequest
    """The options that the sequences of all choices share; it has no prompt."""
    charges_predictions: bool = False
    """Whether the tokens of the prediction that are not in the answer count as completion tokens."""


class RenderedRequest:
    """The renderer's `PreparedRequest`. It is valid for one process of the engine."""

    def __init__(
        self,
        engine: TokenEngine,
        ready_request: ReadyRequest,
        is_current: Callable[[], bool],
        report: EngineReport,
    ) -> None:
        """`is_current`: whether the engine is still the process that the request was prepared for."""
        self._engine = engine
        self._ready_request = ready_request
        self._is_current = is_current
        self.report = report
        prediction = ready_request.shared_request.prediction if ready_request.charges_predictions else ()
        self.size = compute_size(ready_request.request, ready_request.fitted_prompts, len(prediction))

    def stream(self, context: Context) -> AbstractAsyncContextManager[AsyncIterator[EventGroup]]:
        """Streams the events of all choices. Raises EngineUnavailable if the engine restarted after the
        request was prepared."""
        return aclosing(self._events(context))

    async def _events(self, context: Context) -> AsyncGenerator[EventGroup, None]:
        """Yields the events of all choices, with one Started first and the usage last."""
        if not self._is_current():
            raise EngineUnavailable(
                "the engine restarted before this request began; try again", retry_after=RETRY_AFTER
            )
        request, fitted_prompts = self._ready_request.request, self._ready_request.fitted_prompts
        parser = OutputParser(
            self._ready_request.original, request, self._ready_request.model_info, context.clock
        )
        choice_set = build_choices(request, parser.shown_model_info, fitted_prompts)
        token_requests = build_token_requests(
            request, self._ready_request.shared_request, fitted_prompts, context.clock
        )
        choice_events: list[AsyncGenerator[EventGroup, None]] = []
        for decoder, (prompt, token_request) in zip(choice_set.decoders, token_requests, strict=True):
            decoded_events = self._decode_choice(decoder, prompt, token_request)
            parsed_events = parser.parse(decoder, prompt.begin, decoded_events)
            choice_events.append(add_repeated_message(parsed_events, decoder.choice, prompt))
        prompt_token_ids = (
            tuple(prompt.tokens for prompt in fitted_prompts) if request.output.token_ids else ()
        )
        tally = RequestTally(
            tuple(len(prompt.tokens) for prompt in fitted_prompts),
            choice_set.decoders,
            prompt_token_ids,
            len(self._ready_request.shared_request.prediction),
            self._ready_request.charges_predictions,
            sum(prompt.count_cells(MediaKind.IMAGE) for prompt in fitted_prompts),
            sum(prompt.count_cells(MediaKind.AUDIO) for prompt in fitted_prompts),
        )
        has_started = False
        async with (
            map_engine_death(choice_set.decoders),
            self._hold_media(context),
            aclosing(choice_set.choose(enforce_deadline(merge(choice_events), context))) as events,
        ):
            async for group in events:
                if not any(isinstance(event, Started) for event in group):
                    yield group
                    continue
                shown_events: list[Event] = [] if has_started else [tally.build_started()]
                has_started = True
                shown_events += [event for event in group if not isinstance(event, Started)]
                if shown_events:
                    yield shown_events
        yield (tally.build_usage(),)

    @asynccontextmanager
    async def _hold_media(self, context: Context) -> AsyncIterator[None]:
        """Gives the engine the media of all prompts, while the context lasts. Raises DeadlineExceeded if the
        engine has not taken them when the request's deadline passes."""
        media = {
            medium.digest: medium for prompt in self._ready_request.fitted_prompts for medium in prompt.media
        }
        salt = self._ready_request.shared_request.cache_salt
        async with AsyncExitStack() as holds:
            if media and isinstance(self._engine, MediaEngine):
                try:
                    async with asyncio.timeout(context.remaining()):
                        for medium in media.values():
                            await holds.enter_async_context(self._engine.hold(medium, salt))
                except TimeoutError:
                    raise build_deadline_error() from None
            yield

    def _decode_choice(
        self, decoder: ChoiceDecoder, prompt: FittedPrompt, token_request: TokenRequest
    ) -> AsyncGenerator[EventGroup, None]:
        """Yields the events of one choice."""
        scores = prompt.logprobs if token_request.prompt_logprobs is not None else None
        needs_engine = scores is not None or token_request.max_tokens > 0
        sequence = (
            self._engine.generate(token_request) if needs_engine else generate_nothing(len(prompt.tokens))
        )
        if scores is not None:
            sequence = scores.collect_scores(sequence)
        events = (
            prompt.echo.decode(decoder, sequence) if prompt.echo is not None else decoder.decode(sequence)
        )
        return events if scores is None else scores.insert_scores(events)


def build_token_requests(
    request: GenerationRequest,
    shared_request: TokenRequest,
    fitted_prompts: Sequence[FittedPrompt],
    clock: Clock,
) -> Iterator[tuple[FittedPrompt, TokenRequest]]:
    """Yields one token request for each choice, with its prompt. The choices of one prompt are a group."""
    candidate_count = request.output.best_of or request.output.choices
    for prompt in fitted_prompts:
        # The request's id can come from the caller, so it cannot identify the group.
        group = clock.unique() if candidate_count > 1 else None
        alternatives = prompt.logprobs.width if prompt.logprobs is not None else None
        for choice in range(candidate_count):
            yield (
                prompt,
                replace(
                    shared_request,
                    prompt=PromptTokens(prompt.tokens, prompt.spans),
                    max_tokens=prompt.max_tokens,
                    constraint=prompt.constraint,
                    group=group,
                    choice=choice,
                    prompt_logprobs=alternatives if choice == 0 else None,
                ),
            )


def compute_size(
    request: GenerationRequest, fitted_prompts: Sequence[FittedPrompt], charged_prediction: int = 0
) -> RequestSize:
    """Returns the tokens of all prompts, and the most tokens that all candidates together can generate.
    `charged_prediction`: the tokens of the prediction, if they count where they are not in the answer."""
    candidate_count = request.output.best_of or request.output.choices
    max_output = sum(prompt.max_tokens + charged_prediction for prompt in fitted_prompts) * candidate_count
    return RequestSize(sum(len(prompt.tokens) for prompt in fitted_prompts), max_output)


@asynccontextmanager
async def map_engine_death(decoders: Sequence[ChoiceDecoder]) -> AsyncIterator[None]:
    """Maps the engine's death to an error. A request with a choice that already runs is not retried."""
    try:
        yield
    except EngineUnavailable as error:
        if any(decoder.cached_tokens is not None for decoder in decoders):
            raise EngineDied(error.message, retry_after=error.retry_after, cause=error.cause) from None
        raise


def add_repeated_message(
    events: AsyncGenerator[EventGroup, None], choice: int, prompt: FittedPrompt
) -> AsyncGenerator[EventGroup, None]:
    """Adds the conversation's last message to the beginning of a choice, if the prompt repeats it. No reader
    searches this message for calls and reasoning."""
    return repeat_prompt(choice, prompt.repeated_message, events) if prompt.repeated_message else events


class ChoiceSet(Struct, frozen=True):
    """The decoders of one request's candidates, and how choices are selected from the candidates."""

    decoders: Sequence[ChoiceDecoder]
    """One decoder for each candidate, in the order of the prompts."""
    choose: Callable[[AsyncGenerator[EventGroup, None]], AsyncGenerator[EventGroup, None]]
    """Maps the events of all candidates to the events of the choices."""


def build_choices(
    request: GenerationRequest, model_info: ModelInfo, fitted_prompts: Sequence[FittedPrompt]
) -> ChoiceSet:
    """Makes a decoder for each candidate. The decoders are plain if the caller requests no token ids and no
    log-probabilities."""
    output, options = request.output, build_decode_options(request, model_info)
    if output.logprobs is None and output.best_of is None and not output.token_ids:
        plain_decoders = [
            ChoiceDecoder(index, options) for index in range(len(fitted_prompts) * output.choices)
        ]
        return ChoiceSet(plain_decoders, lambda events: events)
    candidate_count = output.best_of or output.choices
    scored_decoders: list[ScoredDecoder] = []
    for prompt in fitted_prompts:
        offset = len(prompt.echo.layout.text) if prompt.echo is not None else 0
        has_logprobs, token_ids = output.logprobs is not None, output.logprob_token_ids
        scoring = ScoreOptions(has_logprobs, offset, output.token_ids, token_ids)
        scored_decoders += [
            ScoredDecoder(len(scored_decoders) + index, options, model_info, scoring)
            for index in range(candidate_count)
        ]
    if output.best_of is None:
        return ChoiceSet(scored_decoders, lambda events: events)
    return ChoiceSet(
        scored_decoders,
        lambda events: choose_best(events, scored_decoders, len(fitted_prompts), output.choices),
    )


class RequestTally(Struct, frozen=True):
    """The token counts of one request."""

    prompt_token_counts: tuple[int, ...]
    """Number of tokens of each prompt."""
    decoders: Sequence[ChoiceDecoder]
    """Decoders of the candidates, in the order of the prompts."""
    prompt_token_ids: tuple[tuple[int, ...], ...] = ()
    """Token ids of each prompt, if the caller requests them."""
    predicted_count: int = 0
    """Number of tokens of the prediction."""
    charges_predictions: bool = False
    """Whether its tokens that are not in the answer count as completion tokens."""
    image_tokens: int = 0
    """Number of the prompts' tokens that are cells of images."""
    audio_tokens: int = 0
    """Number of the prompts' tokens that are cells of recordings."""

    def build_started(self) -> Started:
        """Builds the request's first event. Call it when the first choice starts."""
        queue_seconds = [
            decoder.queue_seconds for decoder in self.decoders if decoder.queue_seconds is not None
        ]
        return Started(
            sum(self.prompt_token_counts),
            self._count_cached(),
            self.prompt_token_ids,
            min(queue_seconds, default=None),
        )

    def build_usage(self) -> Usage:
        """Builds the request's last event, with the token counts of all choices."""
        completion_tokens = sum(decoder.completion_tokens for decoder in self.decoders)
        reasoning_tokens = sum(
            decoder.reasoning_counter.tokens
            for decoder in self.decoders
            if decoder.reasoning_counter is not None
        )
        # A token can be computed in vain several times. It counts once, so that the prediction limits them.
        rejected_tokens = sum(
            min(decoder.mispredicted_tokens, max(0, self.predicted_count - decoder.predicted_tokens))
            for decoder in self.decoders
        )
        return Usage(
            sum(self.prompt_token_counts),
            completion_tokens + rejected_tokens * self.charges_predictions,
            self._count_cached(),
            reasoning_tokens,
            accepted_prediction_tokens=sum(decoder.predicted_tokens for decoder in self.decoders),
            rejected_prediction_tokens=rejected_tokens,
            prompt_image_tokens=self.image_tokens,
            prompt_audio_tokens=self.audio_tokens,
        )

    def _count_cached(self) -> int:
        """Counts the cached tokens of each prompt once. A token counts as cached if no choice of the prompt
        computed it."""
        candidate_count = len(self.decoders) // len(self.prompt_token_counts)
        groups = (
            self.decoders[begin : begin + candidate_count]
            for begin in range(0, len(self.decoders), candidate_count)
        )
        return sum(min(decoder.cached_tokens or 0 for decoder in group) for group in groups)
