"""The renderer: an `Engine` over any token engine. It converts texts to tokens and back.

`prompt` converts a prompt to tokens; `rendered_request` runs a prepared request. An `AdapterRenderer` is a
base model's renderer with one adapter: an `Engine` and `TokenizerEngine` that shares vocabulary, templates
and profile with the base. It is no `ObservableEngine`: the base model reports the engine's load.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from hashlib import blake2b
from typing import TypeVar

from antiphon.domain.context import Clock, Context, EngineReport, SystemClock
from antiphon.domain.events import EventGroup
from antiphon.domain.fair_queue import FairSemaphore, QueueLimits
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor
from antiphon.domain.models import Load, Profile, TokenizerInfo
from antiphon.domain.request import (
    Conversation,
    EmbeddingRequest,
    GenerationRequest,
    Prompt,
    RerankRequest,
    SamplingOptions,
)
from antiphon.domain.values import Struct, replace
from antiphon.domain.vendor_fields import list_unused, require_local, require_text
from antiphon.engines.base import ConstraintEngine, EngineState, PromptTokens, TokenEngine, TokenRequest
from antiphon.errors import (
    AntiphonError,
    EngineUnavailable,
    InvalidValue,
    ModelNotFound,
    UnsupportedParameter,
)
from antiphon.rendering.context_window import FittedPrompt, fit_prompts
from antiphon.rendering.embedding import TokenizedTexts, prepare_embedding
from antiphon.rendering.logprobs import settle_widths
from antiphon.rendering.model_info import (
    ModelInfo,
    Prove,
    build_tokenizer_info,
    load_info,
    prove_in_sandbox,
    with_template,
)
from antiphon.rendering.output_parser import constrain_calls, constrain_prompt
from antiphon.rendering.prompt import encode, render_prompt, require_token_ids, tokenize_prediction
from antiphon.rendering.prompt_media import (
    NO_MEDIA,
    ReadMedia,
    RequestMedia,
    lay_out_media,
    list_media,
    require_usable,
)
from antiphon.rendering.rendered_request import ReadyRequest, RenderedRequest
from antiphon.rendering.rerank import TokenizedPairs, prepare_rerank
from antiphon.rendering.streams import build_deadline_error
from antiphon.rendering.template.chat_template import BY_TEMPLATE, NotationFamilies
from antiphon.rendering.template.environment import watch_fields
from antiphon.rendering.template.request_template import TemplateHelper
from antiphon.rendering.tokenizer import QUEUE_LIMITS, FairTokenizer, tokenize_banned_words

T = TypeVar("T")

NO_READER = "this server cannot decode images and recordings; run `make serve EXTRAS=media`, or leave it out"
"""The reason for a refusal if the extra with the decoders is not installed."""

MANY_TOKENS = 10_000
"""More tokens than this are decoded in a thread. This many tokens take about two milliseconds."""

CHECK_LIMITS = QueueLimits(
    sys.maxsize, sys.maxsize, queue_per_actor=64, item_name="constraints", at_once_per_actor=2
)
"""Limits for checking constraints. An engine checks one constraint after the other, and each check can take
seconds."""

ADAPTER = "adapter"
"""The `param` of an engine's error about an unknown adapter."""

RETRY_AFTER = 1.0
"""Seconds that a restarted engine needs to load small adapters again."""

FAILED_RETRY_AFTER = 15.0
"""Seconds until an engine that could not load an adapter tries again."""


class RendererOptions(Struct, frozen=True):
    """The operator's settings for a model's requests."""

    projects_share: bool = False
    """Whether projects share cached prefixes. The prefix of a request with a salt is never shared."""
    families: NotationFamilies = BY_TEMPLATE
    """The configured families of the model's notations."""
    sampling: SamplingOptions = SamplingOptions()
    """Defaults of the requests. Values of the model file are used where these are None."""
    helper: TemplateHelper | None = None
    """Renders the templates that requests bring; None refuses them."""
    most_logprobs: int = 20
    """The most alternatives that a request may ask for at each token; -1 is the whole vocabulary."""
    charges_predictions: bool = False
    """Whether the tokens of a prediction that are not in the answer count as completion tokens."""
    read_media: ReadMedia | None = None
    """Decodes callers' images and recordings; None refuses them."""


class Renderer:
    """Implements `Engine`, `TokenizerEngine`, `TextEmbeddingEngine` and `ObservableEngine` with a token
    engine, which it owns."""

    def __init__(
        self,
        engine: TokenEngine,
        *,
        state: Callable[[], EngineState] = lambda: EngineState.READY,
        generation: Callable[[], int] = lambda: 0,
        request_load: Callable[[], None] = lambda: None,
        prove: Prove = prove_in_sandbox,
        options: RendererOptions = RendererOptions(),
    ) -> None:
        """`state`: returns the engine's state. `generation`: returns a number that grows when the engine
        comes back, perhaps with other weights. `request_load`: has the engine loaded if it is parked."""
        self._engine = engine
        self._options = options
        self._tokenizer_queue = FairSemaphore(QUEUE_LIMITS)
        """The queue in which callers wait to tokenize long texts."""
        self._check_queue = FairSemaphore(CHECK_LIMITS)
        """The queue in which callers wait for the check of a constraint."""
        self._state = state
        self._generation = generation
        self.request_load = request_load
        self._prove = prove
        self._model_info: ModelInfo | None = None
        self._info_generation = 0
        """The generation of the engine that `_model_info` describes."""
        self._refresh_lock = asyncio.Lock()

    # --- Engine ---

    async def prepare(self, request: GenerationRequest, context: Context) -> RenderedRequest:
        return await self.prepare_with_adapter(request, context, None)

    async def prepare_embedding(self, request: EmbeddingRequest, context: Context) -> TokenizedTexts:
        tokenizer = self._make_tokenizer(context.actor, context.clock)
        model_info = await self._run_in_time(self._refresh_info(), context)
        return await self._run_in_time(
            prepare_embedding(self._engine, tokenizer, model_info, request), context
        )

    async def prepare_rerank(self, request: RerankRequest, context: Context) -> TokenizedPairs:
        tokenizer = self._make_tokenizer(context.actor, context.clock)
        model_info = await self._run_in_time(self._refresh_info(), context)
        return await self._run_in_time(prepare_rerank(self._engine, tokenizer, model_info, request), context)

    async def profile(self) -> Profile:
        """Returns the model's profile. Does not load a parked model."""
        if self._model_info is None and self._state() in (EngineState.PARKED, EngineState.LOADING):
            raise EngineUnavailable("the model is not loaded; its first request loads it")
        return (await self._refresh_info()).profile

    def state(self) -> EngineState:
        return self._state()

    async def aclose(self) -> None:
        await self._engine.aclose()

    # --- ObservableEngine ---

    async def observe(self) -> Load:
        return (await self._engine.info()).load

    # --- TokenizerEngine ---

    async def encode(self, prompt: Prompt, actor: Actor = LOCAL_ANONYMOUS) -> tuple[int, ...]:
        require_text(prompt)
        model_info = with_template(await self._refresh_info(), prompt, self._options.helper, actor)
        return await encode(self._make_tokenizer(actor, SystemClock()), model_info, prompt, SystemClock())

    async def apply(self, conversation: Conversation, actor: Actor = LOCAL_ANONYMOUS) -> str:
        require_text(conversation)
        model_info = with_template(await self._refresh_info(), conversation, self._options.helper, actor)
        pieces = await render_prompt(model_info, conversation, SystemClock())
        return "".join(piece.text for piece in pieces)

    async def decode(self, tokens: Sequence[int]) -> str:
        model_info = await self._refresh_info()
        text = (
            await asyncio.to_thread(_detokenize, tokens, model_info)
            if len(tokens) > MANY_TOKENS
            else _detokenize(tokens, model_info)
        )
        return text.removeprefix(" ") if model_info.vocabulary.space_prefix else text

    async def spell(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        model_info = await self._refresh_info()
        require_token_ids(tokens, model_info, "tokens")
        return tuple(model_info.named_pieces.bytes[token] for token in tokens)

    async def describe_tokenizer(self) -> TokenizerInfo:
        return build_tokenizer_info(await self._refresh_info())

    # --- one request ---

    async def prepare_with_adapter(
        self, request: GenerationRequest, context: Context, adapter: str | None
    ) -> RenderedRequest:
        """Prepares the request for the adapter with the digest `adapter`; None means the base model."""
        parts = list_media(request.prompts)
        require_local(request, takes_media=bool(parts))
        report = EngineReport(list_unused(request))
        request = drop_declaration(request)
        generation = self._generation()
        model_info = await self._run_in_time(self._refresh_info(), context)
        model_info = with_template(model_info, request.prompts[0], self._options.helper, context.actor)
        original = settle_widths(request, model_info, self._options.most_logprobs)
        request = constrain_calls(original, model_info)
        media = NO_MEDIA
        if parts:
            facts = require_usable(request, parts, model_info.info.media)
            if (read_media := self._options.read_media) is None:
                raise UnsupportedParameter(
                    f"{parts[0].field} is not supported: {NO_READER}", param=parts[0].field
                )
            salt = self._build_salt(request, context)
            decoded = await self._run_in_time(read_media(parts, facts.sample_rate, salt, context), context)
            async with self._tokenizer_queue.hold(context.actor.caller, context.clock):
                media = await self._run_in_time(lay_out_media(self._engine, parts, decoded), context)
        fitted_prompts = await self._run_in_time(
            self._fit_prompts(request, model_info, context, report, media), context
        )
        shared_request = self._build_shared_request(request, context, model_info, adapter)
        report.temperature, report.top_p = shared_request.sampling.temperature, shared_request.sampling.top_p
        if bad_words := request.output.bad_words:
            banned_sequences = await self._run_in_time(
                tokenize_banned_words(self._engine, model_info, bad_words), context
            )
            shared_request = replace(
                shared_request, sampling=replace(shared_request.sampling, banned=banned_sequences)
            )
        if (prediction := request.vendor_options.prediction) is not None:
            tokenizer = self._make_tokenizer(context.actor, context.clock)
            predicted_tokens, is_cut = await self._run_in_time(
                tokenize_prediction(tokenizer, model_info, prediction), context
            )
            shared_request = replace(shared_request, prediction=predicted_tokens)
            if is_cut:
                report.ignored += (f"{prediction.field}[{len(predicted_tokens)}:]",)
        is_current = partial(self._is_current, generation)
        ready_request = ReadyRequest(
            original,
            request,
            model_info,
            fitted_prompts,
            shared_request,
            self._options.charges_predictions,
        )
        return RenderedRequest(self._engine, ready_request, is_current, report)

    def _is_current(self, generation: int) -> bool:
        """Whether the engine still has that generation."""
        return self._generation() == generation

    async def _run_in_time(self, work: Awaitable[T], context: Context) -> T:
        """Returns the result of `work`. Raises DeadlineExceeded if the request's deadline passes first."""
        try:
            async with asyncio.timeout(context.remaining()):
                return await work
        except TimeoutError:
            raise build_deadline_error() from None

    async def _fit_prompts(
        self,
        request: GenerationRequest,
        model_info: ModelInfo,
        context: Context,
        report: EngineReport,
        media: RequestMedia,
    ) -> list[FittedPrompt]:
        """Converts every prompt to token ids that fit the context, and adds the constraint of its choices.
        Reports the fields that the template ignores."""
        tokenizer = self._make_tokenizer(context.actor, context.clock)
        with watch_fields() as field_usage:
            fitted_prompts = await fit_prompts(tokenizer, model_info, request, context.clock, media)
        conversations = (prompt for prompt in request.prompts if isinstance(prompt, Conversation))
        messages = [message for conversation in conversations for message in conversation.messages]
        report.ignored += field_usage.list_unread(messages)
        pairs = zip(request.prompts, fitted_prompts, strict=True)
        fitted_prompts = [
            constrain_prompt(prompt, fitted_prompt, request.output.constraint, model_info)
            for prompt, fitted_prompt in pairs
        ]
        for constraint in {prompt.constraint for prompt in fitted_prompts if prompt.constraint is not None}:
            async with self._check_queue.hold(context.actor.caller, context.clock):
                if not isinstance(self._engine, ConstraintEngine):
                    raise UnsupportedParameter(
                        f"{constraint.field}: this model's engine takes no constraints; leave it out",
                        param=constraint.field,
                    )
                await self._engine.check(constraint)
        return fitted_prompts

    def _make_tokenizer(self, actor: Actor, clock: Clock) -> FairTokenizer:
        """Returns the engine's tokenizer for one request of the actor."""
        return FairTokenizer(self._engine, self._tokenizer_queue, actor, clock)

    def _build_salt(self, request: GenerationRequest, context: Context) -> str:
        """Returns the key that separates prefixes and media: a hash of the project and the request's salt. It
        is empty if all projects share them."""
        if self._options.projects_share and not request.cache_salt:
            return ""
        project = context.actor.project
        return blake2b(f"{len(project)} {project} {request.cache_salt}".encode(), digest_size=16).hexdigest()

    def _build_shared_request(
        self, request: GenerationRequest, context: Context, model_info: ModelInfo, adapter: str | None
    ) -> TokenRequest:
        """Builds the token request that the sequences of all prompts and choices share."""
        output = request.output
        return TokenRequest(
            prompt=PromptTokens(()),
            max_tokens=0,
            sampling=request.sampling.build_sampling(model_info.profile.sampling, context.clock.seed()),
            stop_token_ids=output.stop_token_ids,
            logprobs=0 if output.logprobs is None and output.best_of else output.logprobs,
            cache_salt=self._build_salt(request, context),
            adapter=adapter,
            actor=context.actor.caller,
            priority=request.priority,
            logprob_token_ids=output.logprob_token_ids,
        )

    async def _refresh_info(self) -> ModelInfo:
        """Returns the information about the model. Loads it at the first call, and again after the engine has
        restarted."""
        generation = self._generation()
        if self._model_info is None or self._info_generation != generation:
            async with self._refresh_lock:
                if self._model_info is None or self._info_generation != generation:
                    self._model_info = await load_info(
                        self._engine,
                        self._prove,
                        self._model_info,
                        self._options.families,
                        self._options.sampling,
                    )
                    self._info_generation = generation
        return self._model_info


def drop_declaration(request: GenerationRequest) -> GenerationRequest:
    """Removes the schema in the caller's original form from the request's constraint, because only vendors
    use that form."""
    constraint = request.output.constraint
    if constraint is None or constraint.declared is None:
        return request
    return replace(request, output=replace(request.output, constraint=replace(constraint, declared=None)))


def _detokenize(tokens: Sequence[int], model_info: ModelInfo) -> str:
    """Returns the text of the tokens. Raises InvalidValue for an id outside the vocabulary."""
    require_token_ids(tokens, model_info, "tokens")
    return model_info.pieces.text(tokens)


class AdapterRenderer:
    """A renderer for one adapter. Close it when the adapter's name is removed."""

    def __init__(
        self, base: Renderer, digest: str, lacks_adapter: Callable[[str], bool] = lambda _: False
    ) -> None:
        """`lacks_adapter`: whether the engine has restarted and could not load the adapter with this
        digest."""
        self._base = base
        self._digest = digest
        self._lacks_adapter = lacks_adapter
        self._is_closed = False

    async def prepare(self, request: GenerationRequest, context: Context) -> "RenderedAdapterRequest":
        """Prepares the request like the base model's renderer, with this adapter."""
        prepared = await self._base.prepare_with_adapter(request, context, self._digest)
        return RenderedAdapterRequest(prepared, partial(self._build_missing_error, request.model))

    async def profile(self) -> Profile:
        return await self._base.profile()

    def state(self) -> EngineState:
        """Returns FAILED if the restarted engine could not load the adapter again, otherwise the state of the
        base model's engine."""
        return EngineState.FAILED if self._lacks_adapter(self._digest) else self._base.state()

    def request_load(self) -> None:
        """Has the base model loaded if it is parked."""
        self._base.request_load()

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Refuses later requests with ModelNotFound; running requests finish."""
        self._is_closed = True

    async def encode(self, prompt: Prompt, actor: Actor = LOCAL_ANONYMOUS) -> tuple[int, ...]:
        return await self._base.encode(prompt, actor)

    async def apply(self, conversation: Conversation, actor: Actor = LOCAL_ANONYMOUS) -> str:
        return await self._base.apply(conversation, actor)

    async def decode(self, tokens: Sequence[int]) -> str:
        return await self._base.decode(tokens)

    async def spell(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        return await self._base.spell(tokens)

    async def describe_tokenizer(self) -> TokenizerInfo:
        return await self._base.describe_tokenizer()

    def _build_missing_error(self, name: str) -> AntiphonError:
        """Returns the error for a request whose adapter the engine does not know. `name`: the model's name in
        the request."""
        if self._is_closed:
            return ModelNotFound(f"the adapter {name!r} was unloaded", param="model")
        if self._lacks_adapter(self._digest):
            return EngineUnavailable(
                f"the engine of {name} started again and could not load its adapter; the log says why. The "
                "engine tries again by itself; POST /v1/load_lora_adapter makes it try at once",
                retry_after=FAILED_RETRY_AFTER,
            )
        return EngineUnavailable(
            f"the engine of {name} has not loaded its adapter yet; try again shortly", retry_after=RETRY_AFTER
        )


class RenderedAdapterRequest:
    """A `PreparedRequest` that reports a refused adapter as an error of the model."""

    def __init__(self, prepared: RenderedRequest, build_missing_error: Callable[[], AntiphonError]) -> None:
        """`build_missing_error`: returns the error for an adapter that the engine does not know."""
        self._prepared = prepared
        self._build_missing_error = build_missing_error
        self.size, self.report = prepared.size, prepared.report

    def stream(self, context: Context) -> AbstractAsyncContextManager[AsyncIterator[EventGroup]]:
        return aclosing(self._events(context))

    async def _events(self, context: Context) -> AsyncGenerator[EventGroup, None]:
        """Yields the request's events. Maps the engine's refusal of the adapter to an error of the model."""
        try:
            async with self._prepared.stream(context) as groups:
                async for group in groups:
                    yield group
        except InvalidValue as refused:
            if refused.param != ADAPTER:
                raise
            raise self._build_missing_error() from None
