"""Checks whether a token engine makes vectors as the contract requires: `await
check_embedding_engine(engine)`.

It is for engines whose `info` has `embedding`; `token_kit` is for engines that make tokens.
"""

from array import array
from contextlib import aclosing

from antiphon.domain.models import Load
from antiphon.domain.request import FLOAT_BYTES, EmbedRequest, Vectors
from antiphon.domain.values import Struct
from antiphon.engines.base import (
    EmbeddingEngine,
    EngineInfo,
    PromptTokens,
    SequenceStarted,
    TextPiece,
    TokenEngine,
    TokenRequest,
)
from antiphon.errors import AntiphonError, ContextLengthExceeded, EngineBusy, InvalidValue
from antiphon_testing.rules import PATIENCE, require, require_end, require_error, require_soon, run_beside

SENTENCES = (
    "a",
    "the first people",
    "water and fire",
    "what can you do with this many words in one text",
    "and one that is longer than the others, so that it may not fit beside all of them at once",
)
LARGE_REQUEST_TEXTS = 400
"""The number of texts of a request that takes a while."""


class EmbeddingProbe(Struct):
    """The engine under test, its facts, and the options of the kit."""

    engine: TokenEngine
    embedding: EmbeddingEngine
    info: EngineInfo
    texts: tuple[tuple[int, ...], ...]
    tolerance: float
    patience: float
    queue: int | None
    """The most requests that can wait; None if the queue is not tested."""
    idle_load: Load
    """The load counters while nothing runs."""

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
                    numbers and len(event.values) % (FLOAT_BYTES * self.dimensions) == 0,
                    "a Vectors event has one or more whole vectors with the dimensions of info",
                )
                vectors += [
                    tuple(numbers[index : index + self.dimensions])
                    for index in range(0, len(numbers), self.dimensions)
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
                self.idle_load.running,
                self.idle_load.queued,
                self.idle_load.free_sequences,
                self.idle_load.cells_used,
            )

        await require_soon(is_idle, rule, self.patience)

    def build_large_request(self, actor: str) -> EmbedRequest:
        return EmbedRequest((self.texts * LARGE_REQUEST_TEXTS)[:LARGE_REQUEST_TEXTS], actor)


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
    require(info.embedding is not None, "the info of an embedding model has the facts of its vectors")
    frame_start, frame_end = (await engine.vocabulary()).embedding_frame
    texts = [
        (*frame_start, *await engine.tokenize([TextPiece(text)], False), *frame_end) for text in SENTENCES
    ]
    probe = EmbeddingProbe(engine, engine, info, tuple(texts), tolerance, patience, queue, info.load)
    for rule in RULES:
        await rule(probe)
        await probe.require_idle(f"an ended request holds no resources ({rule.__name__})")


async def check_unit_length(probe: EmbeddingProbe) -> None:
    if probe.info.embedding is not None and probe.info.embedding.ranks:
        return  # a reranker gives one number, of any size
    for vector in await probe.embed(EmbedRequest(probe.texts)):
        length = sum(number * number for number in vector)
        require(abs(length - 1) < 1e-3, "a vector has the length 1")


async def check_batch_invariance(probe: EmbeddingProbe) -> None:
    together = await probe.embed(EmbedRequest(probe.texts))
    for text, expected in zip(probe.texts, together, strict=True):
        (alone,) = await probe.embed(EmbedRequest((text,)))
        difference = max(abs(one - other) for one, other in zip(alone, expected, strict=True))
        require(difference <= probe.tolerance, "a text has the same vector alone and in a batch")


async def check_token_count(probe: EmbeddingProbe) -> None:
    """Requires SequenceStarted to count the tokens of all texts."""
    async with aclosing(probe.embedding.embed(EmbedRequest(probe.texts))) as events:
        started = await anext(events)
    require(
        isinstance(started, SequenceStarted) and started.prompt_tokens == sum(map(len, probe.texts)),
        "SequenceStarted counts the tokens of all texts",
    )


async def check_invalid_inputs(probe: EmbeddingProbe) -> None:
    """Requires the engine to refuse empty texts, unknown token ids, and a text longer than the context."""
    size, context_length = probe.info.vocabulary, probe.info.context_length
    for texts in ((), ((),), (probe.texts[0], ()), ((size,),), ((-1,),)):
        await require_error(
            probe.embed(EmbedRequest(texts)),
            InvalidValue,
            "an empty request, an empty text and unknown ids are refused with InvalidValue",
        )
    long_text = (probe.texts[0] * (context_length + 1))[: context_length + 1]
    await require_error(
        probe.embed(EmbedRequest((long_text,))),
        ContextLengthExceeded,
        "a text longer than the context is refused with ContextLengthExceeded, never shortened",
    )
    require(await probe.embed(EmbedRequest((long_text[:context_length],))), "a text may fill the context")


async def check_generation_refusal(probe: EmbeddingProbe) -> None:
    async def generate_tokens() -> None:
        async with aclosing(
            probe.engine.generate(TokenRequest(PromptTokens(probe.texts[0]), max_tokens=1))
        ) as events:
            await anext(events)

    await require_error(generate_tokens(), AntiphonError, "an embedding model refuses to make tokens")


async def check_closing(probe: EmbeddingProbe) -> None:
    """Closes a large request, and requires the engine to be idle afterwards."""
    events = probe.embedding.embed(probe.build_large_request("leaving"))
    await anext(events)
    await require_end(events.aclose(), "closing the generator returns at once", probe.patience)
    await probe.require_idle("a closed request holds no resources")


async def check_turns(probe: EmbeddingProbe) -> None:
    """Runs small requests beside a large one, of the same actor and of another."""
    async with aclosing(probe.embedding.embed(probe.build_large_request("large"))) as events:
        await anext(events)
        for actor in ("large", "other"):
            await require_end(
                probe.embed(EmbedRequest(probe.texts[:1], actor)),
                "a small request does not wait for all of a large one",
                probe.patience,
            )
        last_vectors = Vectors(0, b"")
        async for event in events:
            last_vectors = event if isinstance(event, Vectors) else last_vectors
        require(last_vectors.start, "the large request is served too")


async def check_full_queue(probe: EmbeddingProbe) -> None:
    """Sends more requests than may wait and run, each of a different actor."""
    if probe.queue is None:
        return
    refused: list[EngineBusy] = []

    async def send_request(index: int) -> None:
        try:
            await probe.embed(probe.build_large_request(f"waiting-{index}"))
        except EngineBusy as error:
            refused.append(error)

    async def any_refused() -> bool:
        return bool(refused)

    requests = (send_request(index) for index in range(probe.queue + probe.info.sequences + 1))
    async with run_beside(*requests) as tasks:
        rule = "a request beyond a full queue is refused with EngineBusy"
        await require_soon(any_refused, rule, probe.patience)
        require(all((error.retry_after or 0) > 0 for error in refused), "EngineBusy says when to try again")
        done_count = sum(task.done() for task in tasks)
        require(done_count < probe.queue, "a refusal does not end waiting requests")


RULES = (
    check_unit_length,
    check_batch_invariance,
    check_token_count,
    check_invalid_inputs,
    check_generation_refusal,
    check_closing,
    check_turns,
    check_full_queue,
)
