"""The renderer: an `Engine` over any token engine. Text goes in and out here, tokens below.

How a prompt becomes tokens is in `prompts`; what a request that is ready does is in `rendered_request`.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import TypeVar

from antiphon.domain.constraint import Constraint
from antiphon.domain.context import Clock, Context, SystemClock
from antiphon.domain.embedding import EmbeddingRequest
from antiphon.domain.fair_queue import Bounds, FairSemaphore
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor
from antiphon.domain.load import Load
from antiphon.domain.profile import Profile
from antiphon.domain.request import Conversation, GenerationRequest, Prompt
from antiphon.domain.tokenizer import TokenizerInfo
from antiphon.engines.base import Constrainable, EngineState, TokenEngine, TokenRequest
from antiphon.errors import UnsupportedParameter
from antiphon.rendering import prompts
from antiphon.rendering.banning import tokenize_banned_words
from antiphon.rendering.embedding import TokenizedTexts, prepare_embedding
from antiphon.rendering.fair_tokenizer import BOUNDS, FairTokenizer
from antiphon.rendering.field_usage import watch_fields
from antiphon.rendering.model_info import (
    ModelInfo,
    Prove,
    load_info,
    prove_in_sandbox,
    tokenizer_info,
    with_template,
)
from antiphon.rendering.reasoning.before import constrain_prompt
from antiphon.rendering.rendered_request import ReadyRequest, RenderedRequest
from antiphon.rendering.sandboxed_template import TemplateHelper
from antiphon.rendering.streams import deadline_error
from antiphon.rendering.templates import BY_TEMPLATE, NotationFamilies
from antiphon.rendering.toolcalls.calling import constrain_calls
from antiphon.rendering.widths import settle_widths

T = TypeVar("T")

MANY = 10_000
"""Tokens to decode above which a thread does it: about two milliseconds."""


CHECKS = Bounds(sys.maxsize, sys.maxsize, queue_per_actor=64, waiting="constraints", at_once_per_actor=2)
"""Constraints of one actor that are checked at once: an engine checks one after the other as they come, and
may take seconds for each."""


@dataclass(frozen=True, slots=True)
class RendererOptions:
    """What the operator decided of a model's requests."""

    projects_share: bool = False
    """Whether a prefix that one project computed serves another, unless a request has a salt."""
    families: NotationFamilies = BY_TEMPLATE
    """Whose notations the model has."""
    helper: TemplateHelper | None = None
    """Renders the templates that requests bring; None: they are refused."""
    most_logprobs: int = 20
    """Likeliest tokens that a request may have at each place; -1: the whole vocabulary."""


class Renderer:
    """`Engine`, `Tokenizing`, `TextEmbedding` and `Observable` over a token engine, which it owns."""

    def __init__(
        self,
        engine: TokenEngine,
        *,
        state: Callable[[], EngineState] = lambda: EngineState.READY,
        generation: Callable[[], int] = lambda: 0,
        prove: Prove = prove_in_sandbox,
        rules: RendererOptions = RendererOptions(),
    ) -> None:
        """`state`: where the engine stands. `generation`: grows when the engine comes back, perhaps with
        other weights."""
        self._engine = engine
        self._rules = rules
        self._places = FairSemaphore(BOUNDS)
        """For long texts that are tokenized."""
        self._checks = FairSemaphore(CHECKS)
        """For constraints that are checked."""
        self._state = state
        self._generation = generation
        self._prove = prove
        self._facts: ModelInfo | None = None
        self._learnt = 0
        """The generation that the facts are of."""
        self._learning = asyncio.Lock()

    # --- Engine ---

    async def prepare(self, request: GenerationRequest, context: Context) -> RenderedRequest:
        return await self.prepare_with(request, context, None)

    async def prepare_embedding(self, request: EmbeddingRequest, context: Context) -> TokenizedTexts:
        tokens = self._tokens(context.actor, context.clock)
        facts = await self._in_time(self._refresh_info(), context)
        return await self._in_time(prepare_embedding(self._engine, tokens, facts, request), context)

    async def profile(self) -> Profile:
        return (await self._refresh_info()).profile

    def state(self) -> EngineState:
        return self._state()

    async def aclose(self) -> None:
        await self._engine.aclose()

    # --- Observable ---

    async def observe(self) -> Load:
        return (await self._engine.info()).load

    # --- Tokenizing ---

    async def encode(self, prompt: Prompt, actor: Actor = LOCAL_ANONYMOUS) -> tuple[int, ...]:
        facts = with_template(await self._refresh_info(), prompt, self._rules.helper, actor)
        return await prompts.encode(self._tokens(actor, SystemClock()), facts, prompt, SystemClock())

    async def apply(self, conversation: Conversation, actor: Actor = LOCAL_ANONYMOUS) -> str:
        facts = with_template(await self._refresh_info(), conversation, self._rules.helper, actor)
        pieces = await prompts.render_prompt(facts, conversation, SystemClock())
        return "".join(piece.text for piece in pieces)

    async def decode(self, tokens: Sequence[int]) -> str:
        facts = await self._refresh_info()
        text = await asyncio.to_thread(_text, tokens, facts) if len(tokens) > MANY else _text(tokens, facts)
        return text.removeprefix(" ") if facts.vocabulary.space_prefix else text

    async def spell(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        facts = await self._refresh_info()
        prompts.require_known(tokens, facts, "tokens")
        return tuple(facts.spelt.bytes[token] for token in tokens)

    async def describe_tokenizer(self) -> TokenizerInfo:
        return tokenizer_info(await self._refresh_info())

    # --- one request ---

    async def prepare_with(
        self, request: GenerationRequest, context: Context, adapter: str | None
    ) -> RenderedRequest:
        """The request made ready, to be computed with the adapter of that digest."""
        generation = self._generation()
        facts = await self._in_time(self._refresh_info(), context)
        facts = with_template(facts, request.prompts[0], self._rules.helper, context.actor)
        original = settle_widths(request, facts, self._rules.most_logprobs)
        request = constrain_calls(original, facts)
        fitted = await self._in_time(self._fit_prompts(request, facts, context), context)
        one = self._build_shared_request(request, context, facts, adapter)
        if words := request.output.bad_words:
            found = await self._in_time(tokenize_banned_words(self._engine, facts, words), context)
            one = replace(one, sampling=replace(one.sampling, banned=found))
        is_current = partial(self._is_current, generation)
        ready = ReadyRequest(original, request, facts, fitted, one)
        return RenderedRequest(self._engine, ready, is_current)

    def _is_current(self, generation: int) -> bool:
        """Whether the engine is still the one of that generation."""
        return self._generation() == generation

    async def _in_time(self, work: Awaitable[T], context: Context) -> T:
        """What comes before the first token is within the deadline too."""
        try:
            async with asyncio.timeout(context.remaining()):
                return await work
        except TimeoutError:
            raise deadline_error() from None

    async def _fit_prompts(
        self, request: GenerationRequest, facts: ModelInfo, context: Context
    ) -> list[prompts.FittedPrompt]:
        """Every prompt as token ids that fit, with what its choices are held to, before any of them makes a
        token."""
        tokens = self._tokens(context.actor, context.clock)
        with watch_fields() as watch:
            fitted = await prompts.fit_prompts(tokens, facts, request, context.clock)
        context.progress.unread = watch.unread(
            [
                each
                for prompt in request.prompts
                if isinstance(prompt, Conversation)
                for each in prompt.messages
            ]
        )
        pairs = zip(request.prompts, fitted, strict=True)
        fitted = [constrain_prompt(prompt, fits, request.output.constraint, facts) for prompt, fits in pairs]
        for constraint in {fits.constraint for fits in fitted if fits.constraint is not None}:
            async with self._checks.taken(context.actor.caller, context.clock):
                await self._require_constrainable(constraint)
        return fitted

    def _tokens(self, actor: Actor, clock: Clock) -> FairTokenizer:
        return FairTokenizer(self._engine, self._places, actor, clock)

    async def _require_constrainable(self, constraint: Constraint) -> None:
        """Raises the RequestError that says why the constraint cannot be kept."""
        if not isinstance(self._engine, Constrainable):
            raise UnsupportedParameter(
                f"{constraint.field}: this model's engine takes no constraints; leave it out",
                param=constraint.field,
            )
        await self._engine.check(constraint)

    def _build_shared_request(
        self, request: GenerationRequest, context: Context, facts: ModelInfo, adapter: str | None
    ) -> TokenRequest:
        """What the sequences of all prompts and choices have in common."""
        output = request.output
        return TokenRequest(
            segments=(),
            max_tokens=0,
            sampling=request.sampling.settle(facts.profile.sampling, context.clock.seed()),
            stop_token_ids=output.stop_token_ids,
            logprobs=0 if output.logprobs is None and output.best_of else output.logprobs,
            cache_salt=self._salt(request, context),
            adapter=adapter,
            actor=context.actor.caller,
            priority=request.priority,
            logprob_token_ids=output.logprob_token_ids,
        )

    def _salt(self, request: GenerationRequest, context: Context) -> str:
        """Whose prefixes a request may share: its project's under its own salt; everybody's, where that is
        the setting and it has none."""
        if self._rules.projects_share and not request.cache_salt:
            return ""
        project = context.actor.project
        return blake2b(f"{len(project)} {project} {request.cache_salt}".encode(), digest_size=16).hexdigest()

    async def _refresh_info(self) -> ModelInfo:
        """What is known of the model, asked again when the engine has come back."""
        generation = self._generation()
        if self._facts is None or self._learnt != generation:
            async with self._learning:
                if self._facts is None or self._learnt != generation:
                    self._facts = await load_info(
                        self._engine, self._prove, self._facts, self._rules.families
                    )
                    self._learnt = generation
        return self._facts


def _text(tokens: Sequence[int], facts: ModelInfo) -> str:
    prompts.require_known(tokens, facts, "tokens")
    return facts.pieces.text(tokens)
