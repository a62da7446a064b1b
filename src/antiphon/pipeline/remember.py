"""Chooses the part of the conversation that the model sees, by the request's memory strategy.

`antiphon.memory.turns` makes the decisions. The engine that would serve the request counts the tokens of its
prompt. Child calls of the request make the vectors of `relevant`. The process caches vectors, so a growing
conversation pays for each turn about once.
"""

from collections import OrderedDict
from hashlib import sha256

from antiphon.domain.context import Context
from antiphon.domain.memory import FittingTurns, LastMessages, LastTokens, MemoryReport, RelevantTurns
from antiphon.domain.messages import Message
from antiphon.domain.request import EmbeddingRequest, GenerationRequest, RawPrompt
from antiphon.domain.values import Struct, field
from antiphon.engines.registry import Model, ModelRegistry
from antiphon.errors import ContextLengthExceeded, InvalidValue, ModelNotFound, PermissionDenied
from antiphon.memory.turns import (
    LONGEST_TURN,
    SHORTEST_CUT,
    RankedTurns,
    TurnSearch,
    count_leading,
    keep_last_messages,
)
from antiphon.pipeline.child import ChildCalls, name_model_in_errors
from antiphon.pipeline.count_prompt import (
    choose_prompt_budget,
    count_messages,
    count_tokens,
    measure_conversation,
    measure_prompt,
    replace_messages,
    require_conversation,
)
from antiphon.pipeline.documents import DocumentTexts
from antiphon.pipeline.open_route import OpenRoute, RoutePolicy
from antiphon.pipeline.routing import resolve
from antiphon.pipeline.summarise import SummaryStages

MAX_VECTORS = 4096
"""The most vectors in the cache of one process."""

BATCH = 256
"""The most texts of one call."""


class TurnVectors:
    """A cache of the vectors of turns, by a digest of project, model and text. It stores no text. The least
    recently used vector is removed first."""

    def __init__(self, max_vectors: int = MAX_VECTORS) -> None:
        self._max_vectors = max_vectors
        self._vectors: OrderedDict[bytes, bytes] = OrderedDict()

    def find(self, project: str, model: str, text: str) -> bytes | None:
        """Returns the cached vector of a text, or None."""
        key = _digest(project, model, text)
        if key in self._vectors:
            self._vectors.move_to_end(key)
        return self._vectors.get(key)

    def add(self, project: str, model: str, text: str, vector: bytes) -> None:
        """Caches a vector."""
        self._vectors[_digest(project, model, text)] = vector
        while len(self._vectors) > self._max_vectors:
            self._vectors.popitem(last=False)


def _digest(*texts: str) -> bytes:
    """Returns a digest of 32 bytes of these texts."""
    return sha256(repr(texts).encode(errors="surrogatepass")).digest()


class RelevanceStages(Struct, frozen=True):
    """The strategy and its cache, built once per process."""

    models: ModelRegistry
    policy: RoutePolicy
    vectors: TurnVectors = field(default_factory=TurnVectors)

    async def choose(
        self,
        request: GenerationRequest,
        strategy: RelevantTurns,
        model: Model,
        context: Context,
        calls: ChildCalls,
    ) -> tuple[Message, ...]:
        """Returns the messages that the model sees. Raises InvalidValue if the last turn does not fit the
        budget, and ModelNotFound, PermissionDenied or UnsupportedParameter for the embedding model."""
        messages = require_conversation(request).messages
        encoder = self._resolve_encoder(strategy, context)
        size = await measure_conversation(request, model, context, self.policy)
        budget = choose_prompt_budget(strategy, size, request, model)
        if size.tokens is not None and size.tokens <= budget.tokens:
            return messages
        turns = RankedTurns(messages)

        async def fits(count: int) -> bool:
            tokens = await count_messages(request, turns.choose(count), model, context, self.policy)
            return tokens is not None and tokens <= budget.tokens

        if not await fits(0):
            remedy = "raise it" if budget.is_raisable else "ask for a shorter answer"
            raise InvalidValue(
                f"{strategy.tokens_field}: the prompt can have {budget.tokens} tokens, and the system "
                f"messages with the last turn take more; {remedy}, or shorten them",
                param=strategy.tokens_field,
            )
        turns.rank(await self._embed(turns, encoder, strategy, calls))
        low, high = 0, len(turns)
        while low < high:
            middle = (low + high + 1) // 2
            if await fits(middle):
                low = middle
            else:
                high = middle - 1
        return turns.choose(low)

    def _resolve_encoder(self, strategy: RelevantTurns, context: Context) -> Model:
        """Returns the embedding model. Raises ModelNotFound and PermissionDenied, which name the field."""
        try:
            return resolve(self.models, strategy.model or "", context.actor)
        except (ModelNotFound, PermissionDenied) as error:
            field_name = strategy.model_field
            raise type(error)(f"{field_name}: {error.message}", param=field_name) from None

    async def _embed(
        self, turns: RankedTurns, encoder: Model, strategy: RelevantTurns, calls: ChildCalls
    ) -> list[bytes]:
        """Returns the vector of each turn. Cuts the texts further while the model refuses them."""
        max_length = LONGEST_TURN
        while True:
            try:
                with name_model_in_errors(strategy.model_field, f"{encoder.name} could not make vectors"):
                    return await self._embed_texts(turns.write_texts(max_length), encoder, calls)
            except (ContextLengthExceeded, InvalidValue):
                max_length //= 2
                if max_length < SHORTEST_CUT:
                    raise

    async def _embed_texts(self, texts: list[str], encoder: Model, calls: ChildCalls) -> list[bytes]:
        """Returns the vector of each text. Embeds only texts whose vectors are not cached."""
        project = calls.project
        model = f"{encoder.name} {encoder.created}"  # a reload can give the name to another model
        vectors = {text: self.vectors.find(project, model, text) for text in texts}
        missing = [text for text, vector in vectors.items() if vector is None]
        for batch_start in range(0, len(missing), BATCH):
            batch = missing[batch_start : batch_start + BATCH]
            inputs = tuple(RawPrompt(text=text) for text in batch)
            embeddings = await calls.embed(EmbeddingRequest(encoder.name, inputs))
            for text, vector in zip(batch, embeddings, strict=True):
                self.vectors.add(project, model, text, vector)
                vectors[text] = vector
        return [text_vector for text in texts if (text_vector := vectors[text]) is not None]


class MemoryStages(Struct, frozen=True):
    """The stages of memory strategies that call models, built once per process."""

    summaries: SummaryStages
    relevance: RelevanceStages
    documents: DocumentTexts | None = None
    """Reads documents for models that take none, so that their texts are counted."""


async def remember(
    request: GenerationRequest, model: Model, context: Context, stages: MemoryStages, calls: ChildCalls
) -> GenerationRequest:
    """Returns the request with the messages that the model sees, and reports their number in the progress.
    Raises a RequestError."""
    strategy, messages = request.memory, require_conversation(request).messages
    if strategy is None:
        return request
    if isinstance(strategy, LastMessages):
        kept_messages = keep_last_messages(messages, strategy.k, strategy.field)
    elif isinstance(strategy, LastTokens):
        kept_messages = await _keep_last_tokens(request, strategy, model, context, stages)
    elif isinstance(strategy, FittingTurns):
        kept_messages = await _keep_fitting_turns(request, strategy, model, context, stages)
    elif isinstance(strategy, RelevantTurns):
        kept_messages = await stages.relevance.choose(request, strategy, model, context, calls)
    else:
        kept_messages, report = await stages.summaries.summarise(request, strategy, model, context, calls)
        context.progress.memory = report
        return replace_messages(request, kept_messages)
    context.progress.memory = MemoryReport(len(kept_messages), len(messages) - len(kept_messages))
    return replace_messages(request, kept_messages)


async def _keep_last_tokens(
    request: GenerationRequest,
    strategy: LastTokens,
    model: Model,
    context: Context,
    stages: MemoryStages,
) -> tuple[Message, ...]:
    """Returns the leading messages and as many of the last turns as fit the budget, and the model's context.
    Raises InvalidValue if the last turn does not fit the budget."""
    all_messages = require_conversation(request).messages

    async def search(route: OpenRoute[TurnSearch]) -> TurnSearch:
        turns = TurnSearch(all_messages, strategy.tokens)
        while (messages := turns.choose()) is not None:
            shorter = replace_messages(request, messages)
            turns.add_count(await count_tokens(route.engine, shorter, context, stages.documents))
        return turns

    async with OpenRoute(model, search, context, stages.summaries.policy) as turns:
        if turns.kept_messages is not None:
            return turns.kept_messages
        needed_tokens, remedy = f"{turns.last_turn_tokens} tokens", "raise it"
        if turns.last_turn_tokens is None:
            needed_tokens = "more tokens than the model's context has beside the answer"
            remedy = "ask for a shorter answer"
        raise InvalidValue(
            f"{strategy.field}.tokens is {strategy.tokens}, and the system messages with the last turn take "
            f"{needed_tokens}; {remedy}, or shorten them",
            param=f"{strategy.field}.tokens",
        )


async def _keep_fitting_turns(
    request: GenerationRequest,
    strategy: FittingTurns,
    model: Model,
    context: Context,
    stages: MemoryStages,
) -> tuple[Message, ...]:
    """Returns the leading messages and as many of the last turns as fit beside the answer, at least one. On a
    route that cannot count tokens, returns all messages and reports the strategy's field as ignored."""
    messages, documents = require_conversation(request).messages, stages.documents

    async def search(route: OpenRoute[tuple[Message, ...]]) -> tuple[Message, ...]:
        size = await measure_prompt(route.engine, replace_messages(request, messages), context, documents)
        if not size.is_counted:
            context.progress.ignored = (strategy.field,)
        if not size.is_counted or size.context_length is None:
            return messages
        budget = size.context_length - max(1, request.output.max_tokens or 1)
        if size.tokens is not None and size.tokens <= budget:
            return messages
        turns = TurnSearch(messages, budget)
        while (chosen := turns.choose()) is not None:
            shorter = replace_messages(request, chosen)
            turns.add_count(await count_tokens(route.engine, shorter, context, documents))
        return messages[: count_leading(messages)] + messages[turns.first_kept_index :]

    async with OpenRoute(model, search, context, stages.summaries.policy) as kept_messages:
        return kept_messages
