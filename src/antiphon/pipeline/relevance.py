"""Carries out the memory strategy `relevant`: the older turns nearest to the last one stay.

The vectors are made by calls that are the request's children in the ledger. Those of earlier requests are
kept in the memory of the process, so a conversation that grows pays for each turn about once.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import sha256

from antiphon.domain.context import Context, RequestProgress
from antiphon.domain.memory import RelevantTurns
from antiphon.domain.messages import Message
from antiphon.domain.request import EmbeddingRequest, GenerationRequest, RawPrompt
from antiphon.domain.values import changed
from antiphon.engines.registry import Model, ModelRegistry
from antiphon.errors import (
    ContextLengthExceeded,
    InvalidValue,
    ModelNotFound,
    PermissionDenied,
)
from antiphon.memory.relevant import LONGEST_TURN, SHORTEST_CUT, RankedTurns
from antiphon.pipeline.child import ChildCalls, name_model
from antiphon.pipeline.count_prompt import (
    choose_prompt_budget,
    count_messages,
    measure_conversation,
    require_conversation,
)
from antiphon.pipeline.resolve import resolve
from antiphon.pipeline.route_use import RoutePolicy

MOST_VECTORS = 4096
"""Vectors that one process keeps."""

BATCH = 256
"""Texts of one call."""


class TurnVectors:
    """Vectors of turns by a digest of project, model and text. No text is kept. The vector that was not used
    for the longest time goes first."""

    def __init__(self, most: int = MOST_VECTORS) -> None:
        self._most = most
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()

    def find(self, project: str, model: str, text: str) -> bytes | None:
        """Returns the vector of a text, if it is kept."""
        key = _digest(project, model, text)
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def keep(self, project: str, model: str, text: str, vector: bytes) -> None:
        """Keeps a vector."""
        self._kept[_digest(project, model, text)] = vector
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)


def _digest(*texts: str) -> bytes:
    """Returns 32 bytes that stand for these texts."""
    return sha256(repr(texts).encode(errors="surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class RelevanceStages:
    """What the strategy needs, built once."""

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
        """Returns the messages that the model sees. Raises InvalidValue if the last turn does not fit, and
        ModelNotFound, PermissionDenied or UnsupportedParameter for the model of the vectors."""
        messages = require_conversation(request).messages
        encoder = self._resolve_encoder(strategy, context)
        scratch = changed(context, progress=RequestProgress())
        size = await measure_conversation(request, model, scratch, self.policy)
        budget = choose_prompt_budget(strategy, size, request, model)
        if size.tokens is not None and size.tokens <= budget.tokens:
            return messages
        turns = RankedTurns(messages)

        async def fits(count: int) -> bool:
            tokens = await count_messages(request, turns.choose(count), model, scratch, self.policy)
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
        """Returns the model of the vectors. Raises ModelNotFound and PermissionDenied, which name the
        field."""
        try:
            return resolve(self.models, strategy.model or "", context.actor)
        except (ModelNotFound, PermissionDenied) as error:
            field_name = strategy.model_field
            raise type(error)(f"{field_name}: {error.message}", param=field_name) from None

    async def _embed(
        self, turns: RankedTurns, encoder: Model, strategy: RelevantTurns, calls: ChildCalls
    ) -> list[bytes]:
        """Returns the vector of each turn. Texts that are longer than the model takes are cut further."""
        longest = LONGEST_TURN
        while True:
            try:
                with name_model(strategy.model_field, f"{encoder.name} could not make vectors"):
                    return await self._embed_texts(turns.write_texts(longest), encoder, calls)
            except (ContextLengthExceeded, InvalidValue):
                longest //= 2
                if longest < SHORTEST_CUT:
                    raise

    async def _embed_texts(self, texts: list[str], encoder: Model, calls: ChildCalls) -> list[bytes]:
        """Returns the vector of each text. Only vectors that are not kept are made."""
        project = calls.project
        model = f"{encoder.name} {encoder.created}"  # a reload can give the name to another model
        found = {text: self.vectors.find(project, model, text) for text in texts}
        missing = [text for text, vector in found.items() if vector is None]
        for begin in range(0, len(missing), BATCH):
            some = missing[begin : begin + BATCH]
            inputs = tuple(RawPrompt(text=text) for text in some)
            made = await calls.embed(EmbeddingRequest(encoder.name, inputs))
            for text, new in zip(some, made, strict=True):
                self.vectors.keep(project, model, text, new)
                found[text] = new
        return [vector for text in texts if (vector := found[text]) is not None]
