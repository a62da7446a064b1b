"""Checks whether a token engine makes vectors as the contract requires: `await
check_embedding_engine(engine)`.

It is for engines whose `info` has `embedding`; `token_kit` is for engines that make tokens.
"""

from array import array
from contextlib import aclosing
from dataclasses import dataclass

from antiphon.domain.models import Load
from antiphon.domain.request import WIDTH, EmbedRequest, Vectors
from antiphon.engines.base import (
    EmbeddingEngine,
    EngineInfo,
    SequenceStarted,
    TextPiece,
    TokenEngine,
    TokenRequest,
    TokenSegment,
)
from antiphon.errors import AntiphonError, ContextLengthExceeded, EngineBusy, InvalidValue
from antiphon.testing.rules import PATIENCE, require, require_end, require_error, require_soon, run_beside

SENTENCES = (
    "a",
    "the first people",
    "water and fire",
    "what can you do with this many words in one text",
    "and one that is longer than the others, so that it may not fit beside all of them at once",
)
MANY = 400
"""The number of texts of a request that takes a while."""


@dataclass(slots=True)
class EmbeddingProbe:
    """The engine under test."""

    engine: TokenEngine
    embedding: EmbeddingEngine
    info: EngineInfo
    texts: tuple[tuple[int, ...], ...]
    tolerance: float
    patience: float
    queue: int | None
    resting: Load

    @property
    def dimensions(self) -> int:
        return self.info.embedding.dimensions if self.info.embedding is not None else 0

    async def embed(self, request: EmbedRequest) -> list[tuple[float, ...]]:
        """Returns all vectors of a request, and checks its events."""
        events = [event async for event in self.embedding.embed(request)]
        require(
            isinstance(events[0], SequenceStarted)
            and all(isinstance(event, Vectors) for event in events[1:]),
            "one SequenceStarted comes first, and then Vectors alone",
        )
        vectors: list[tuple[float, ...]] = []
        for event in events[1:]:
            if isinstance(event, Vectors):
                require(event.start == len(vectors), "Vectors come in the order of the texts, none twice")
                numbers = array("f", event.values)
                require(
                    numbers and len(event.values) % (WIDTH * self.dimensions) == 0,
                    "Vectors hold whole vectors of the dimensions that info says, at least one",
                )
                vectors += [
                    tuple(numbers[at : at + self.dimensions])
                    for at in range(0, len(numbers), self.dimensions)
                ]
        require(len(vectors) == len(request.texts), "every text has one vector")
        return vectors

    async def get_load(self) -> Load:
        return (await self.engine.info()).load

    async def require_idle(self, rule: str) -> None:
        """Requires the load counters to equal those at the beginning."""

        async def is_idle() -> bool:
            now = await self.get_load()
            usage = (now.running, now.queued, now.free_sequences, now.cells_used)
            return usage == (
                self.resting.running,
                self.resting.queued,
                self.resting.free_sequences,
                self.resting.cells_used,
            )

        await require_soon(is_idle, rule, self.patience)

    def build_large_request(self, actor: str) -> EmbedRequest:
        return EmbedRequest((self.texts * MANY)[:MANY], actor)


async def check_embedding_engine(
    engine: TokenEngine,
    *,
    tolerance: float = 0.0,
    patience: float = PATIENCE,
    queue: int | None = None,
) -> None:
    """Raises AssertionError with the sentence of the first rule that `engine` breaks. The engine must be
    loaded and idle.

    `tolerance`: how far a number may differ between a text alone and in a batch. `queue`: the engine's limit
    of waiting requests; without it the queue is not tested.
    """
    if not isinstance(engine, EmbeddingEngine):
        raise TypeError("an engine that makes vectors has `embed`")
    info = await engine.info()
    require(info.embedding is not None, "info says what vectors a model makes that makes some")
    before, after = (await engine.vocabulary()).embedding_frame
    texts = [(*before, *await engine.tokenize([TextPiece(text)], False), *after) for text in SENTENCES]
    trial = EmbeddingProbe(engine, engine, info, tuple(texts), tolerance, patience, queue, info.load)
    for rule in RULES:
        await rule(trial)
        await trial.require_idle(f"a request that is over leaves nothing behind ({rule.__name__})")


async def vectors_have_unit_length(trial: EmbeddingProbe) -> None:
    if trial.info.embedding is not None and trial.info.embedding.ranks:
        return  # a reranker gives one number, of any size
    for vector in await trial.embed(EmbedRequest(trial.texts)):
        length = sum(number * number for number in vector)
        require(abs(length - 1) < 1e-3, "a vector has the length 1")


async def company_changes_nothing(trial: EmbeddingProbe) -> None:
    together = await trial.embed(EmbedRequest(trial.texts))
    for text, expected in zip(trial.texts, together, strict=True):
        (alone,) = await trial.embed(EmbedRequest((text,)))
        far = max(abs(one - other) for one, other in zip(alone, expected, strict=True))
        require(far <= trial.tolerance, "a text has one vector, alone and beside others")


async def tokens_are_told(trial: EmbeddingProbe) -> None:
    """Requires SequenceStarted to count the tokens of all texts."""
    async with aclosing(trial.embedding.embed(EmbedRequest(trial.texts))) as events:
        started = await anext(events)
    require(
        isinstance(started, SequenceStarted) and started.prompt_tokens == sum(map(len, trial.texts)),
        "SequenceStarted counts the tokens of all texts",
    )


async def nonsense_is_refused(trial: EmbeddingProbe) -> None:
    """Requires the engine to refuse empty texts, unknown token ids, and a text longer than the context."""
    size, context_length = trial.info.vocabulary, trial.info.context_length
    for texts in ((), ((),), (trial.texts[0], ()), ((size,),), ((-1,),)):
        await require_error(
            trial.embed(EmbedRequest(texts)),
            InvalidValue,
            "no text, an empty one and ids outside the vocabulary are refused with InvalidValue",
        )
    long = (trial.texts[0] * (context_length + 1))[: context_length + 1]
    await require_error(
        trial.embed(EmbedRequest((long,))),
        ContextLengthExceeded,
        "a text longer than the context is refused with ContextLengthExceeded, never shortened",
    )
    require(await trial.embed(EmbedRequest((long[:context_length],))), "a text may fill the context")


async def tokens_are_refused(trial: EmbeddingProbe) -> None:
    async def generate_tokens() -> None:
        async with aclosing(
            trial.engine.generate(TokenRequest((TokenSegment(trial.texts[0]),), max_tokens=1))
        ) as events:
            await anext(events)

    await require_error(generate_tokens(), AntiphonError, "an embedding model refuses to make tokens")


async def closing_ends_the_request(trial: EmbeddingProbe) -> None:
    """Closes a large request, and requires the engine to be idle afterwards."""
    events = trial.embedding.embed(trial.build_large_request("leaving"))
    await anext(events)
    await require_end(events.aclose(), "closing the generator returns at once", trial.patience)
    await trial.require_idle("a request that is closed holds nothing")


async def small_requests_get_their_turn(trial: EmbeddingProbe) -> None:
    """Runs small requests beside a large one, of the same actor and of another."""
    async with aclosing(trial.embedding.embed(trial.build_large_request("large"))) as events:
        await anext(events)
        for actor in ("large", "other"):
            await require_end(
                trial.embed(EmbedRequest(trial.texts[:1], actor)),
                "a small request does not wait for all of a large one",
                trial.patience,
            )
        last = Vectors(0, b"")
        async for event in events:
            last = event if isinstance(event, Vectors) else last
        require(last.start, "the large one is served too")


async def a_full_queue_refuses(trial: EmbeddingProbe) -> None:
    """Sends more requests than may wait and run, each of a different actor."""
    if trial.queue is None:
        return
    refused: list[EngineBusy] = []

    async def ask(number: int) -> None:
        try:
            await trial.embed(trial.build_large_request(f"waiting-{number}"))
        except EngineBusy as error:
            refused.append(error)

    async def any_refused() -> bool:
        return bool(refused)

    asked = (ask(number) for number in range(trial.queue + trial.info.sequences + 1))
    async with run_beside(*asked) as tasks:
        rule = "a request beyond a full queue is refused with EngineBusy"
        await require_soon(any_refused, rule, trial.patience)
        require(all((error.retry_after or 0) > 0 for error in refused), "EngineBusy says when to try again")
        done = sum(task.done() for task in tasks)
        require(done < trial.queue, "those that wait are not ended by it")


RULES = (
    vectors_have_unit_length,
    company_changes_nothing,
    tokens_are_told,
    nonsense_is_refused,
    tokens_are_refused,
    closing_ends_the_request,
    small_requests_get_their_turn,
    a_full_queue_refuses,
)
