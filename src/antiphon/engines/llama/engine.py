"""The embedded engine: llama.cpp as a `TokenEngine`.

This module runs on the event loop. It refuses impossible requests, passes sequences to the decode thread and
yields their events. Tokenizing has threads of its own, so it never waits for a decode. Adapters' files are
checked and read here, one after another, before the decode thread loads the adapter.
"""

import asyncio
import hashlib
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from antiphon.constraints.mask_workers import ModelConstraints
from antiphon.domain.fair_queue import QueueLimits
from antiphon.domain.media import Medium, MediumShape
from antiphon.domain.request import Constraint, EmbedRequest, Vectors
from antiphon.domain.values import replace
from antiphon.domain.vendor_fields import REFUSALS
from antiphon.engines.base import (
    MEDIUM_CELL,
    EngineInfo,
    EventSink,
    LoadSpec,
    MediumLayout,
    RefusedMedium,
    SequenceStarted,
    TextPiece,
    TokenEvent,
    TokenRequest,
    Vocabulary,
)
from antiphon.engines.llama.decode import DecodeLoop
from antiphon.engines.llama.embedding import EmbeddingLoop, EmbeddingStream, LoadedEmbedder, load_any
from antiphon.engines.llama.libllama.model import NativeTokenizer, read_vocabulary
from antiphon.engines.llama.libllama.placement import measure_devices
from antiphon.engines.llama.loading import LoadedGenerator
from antiphon.engines.llama.machine import BoundThreads, choose_binding
from antiphon.engines.llama.mailboxes import EventMailbox, EventPost, SequenceStream, StreamEnd, deliver
from antiphon.engines.llama.media import PLACED_FACTOR, MediaEncoder, PlacedPrompt
from antiphon.engines.llama.scheduler import Scheduler
from antiphon.engines.llama.sequence import TokenSequence
from antiphon.engines.sampling import Sampler, SamplingState
from antiphon.errors import ContextLengthExceeded, EngineUnavailable, InvalidValue, UnsupportedParameter


class AdapterLoader:
    """Adds and removes the adapters of one engine. It checks and reads one file after another, while the
    decode thread goes on decoding."""

    def __init__(self, get_decoder: Callable[[], DecodeLoop]) -> None:
        self._get_decoder = get_decoder
        self._loading: dict[str, asyncio.Event] = {}
        self._load_lock = asyncio.Lock()

    async def add(self, digest: str, path: Path) -> None:
        """Makes an adapter usable. Raises InvalidValue if `digest` is not the digest of its file, or if the
        library refuses the adapter."""
        await self.wait_until_settled(digest)
        loaded = self._loading[digest] = asyncio.Event()
        try:
            async with self._load_lock:
                await asyncio.to_thread(require_digest, path, digest)
                decoder = self._get_decoder()
                await asyncio.wrap_future(
                    decoder.inbox.run_on_thread(partial(decoder.adapter_refs.add, digest, path))
                )
        finally:
            del self._loading[digest]
            loaded.set()

    async def remove(self, digest: str) -> None:
        """Refuses an adapter to new sequences, and forgets the adapter when its last sequence ends."""
        await self.wait_until_settled(digest)
        decoder = self._get_decoder()
        await asyncio.wrap_future(decoder.inbox.run_on_thread(partial(decoder.adapter_refs.remove, digest)))

    async def wait_until_settled(self, digest: str) -> None:
        """Waits while this adapter is being added."""
        while (loaded := self._loading.get(digest)) is not None:
            await loaded.wait()

    async def prepare(self, digest: str) -> None:
        """Waits while this adapter is being added. If the adapter is not in memory, reads its file once on
        another thread, so that the decode thread finds the file in the system's cache."""
        await self.wait_until_settled(digest)
        path = self._get_decoder().adapters.find_unloaded(digest)
        if path is not None:
            await asyncio.to_thread(_read_into_cache, path)


def require_digest(path: Path, digest: str) -> None:
    """Raises InvalidValue unless `digest` is the file's SHA-256 in hexadecimal."""
    try:
        with path.open("rb") as file:
            digest_found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise InvalidValue(
            f"the adapter {path.name} cannot be read: {problem.strerror}", param="adapter"
        ) from None
    if digest_found != digest:
        raise InvalidValue(
            f"the adapter {path.name} is not the one with the digest {digest[:64]}; its file was changed",
            param="adapter",
        )


def _read_into_cache(path: Path) -> None:
    """Reads a whole file, so that the system's cache contains it. Ignores a file that cannot be read."""
    try:
        with path.open("rb") as file:
            hashlib.file_digest(file, "blake2s")
    except OSError:
        pass  # the decode thread reports the error


TOKENIZER_STACK_BYTES = 64 * 1024 * 1024
"""Bytes of stack of a tokenizing thread. Some of llama.cpp's pre-tokenizers recurse, and longer texts need
deeper recursion. Only the used part of the stack takes memory."""

LONG_TEXT = 8192
"""Texts with more characters go to the second tokenizing thread, because some texts take seconds for a
megabyte."""

Result = TypeVar("Result")
E = TypeVar("E")
LoadedModel = LoadedGenerator | LoadedEmbedder
WorkLoop = DecodeLoop | EmbeddingLoop


@contextmanager
def use_deep_stack() -> Iterator[None]:
    """Gives threads that start inside this context a large stack."""
    before = threading.stack_size(TOKENIZER_STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(before)


class LlamaTokenEngine:
    """A `TokenEngine` and `EmbeddingEngine` over one model. Call `load` first and only once. Make every call
    from the same event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._loaded: LoadedModel | None = None
        self._worker: WorkLoop | None = None
        self._vocabulary: Vocabulary | None = None
        self._tokenizer: NativeTokenizer | None = None
        self._constraints: ModelConstraints | None = None
        self._encoder: MediaEncoder | None = None
        """None for a model without a projector."""
        self._adapters = AdapterLoader(self._get_decode_loop)
        self._text_threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="antiphon-tokenize")
        self._long_text_threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="antiphon-long-texts")

    async def load(self, spec: LoadSpec) -> EngineInfo:
        """Loads the model on the decode thread, which then waits for sequences or texts. Raises a
        StartupError."""
        ready: Future[tuple[LoadedModel, WorkLoop]] = Future()
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._run_decode_thread, args=(spec, ready, loop), name="antiphon-decode", daemon=True
        )
        self._thread.start()
        with use_deep_stack():
            for threads in (self._text_threads, self._long_text_threads):
                threads.submit(int)  # starts the thread now, with the large stack
        loaded, worker = await asyncio.wrap_future(ready)
        self._loaded, self._worker = loaded, worker
        return await self.info()

    def _run_decode_thread(
        self, spec: LoadSpec, ready: Future[tuple[LoadedModel, WorkLoop]], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Loads the model, decodes or makes vectors until stopped, then frees the model. No other thread uses
        the native objects of the context."""
        binding = choose_binding(os.environ, spec.threads) if spec.bind_threads else {}
        os.environ.update(binding)  # OpenMP reads it when it is loaded
        try:
            loaded = load_any(spec)
        except BaseException as error:  # noqa: BLE001 - handed to whoever called load
            ready.set_exception(error)
            return

        def post_vectors(deliveries: Sequence[tuple[EventMailbox[E], E | StreamEnd]]) -> None:
            with suppress(RuntimeError):  # the loop has closed, so nobody reads events any more
                loop.call_soon_threadsafe(deliver, deliveries)

        worker: WorkLoop
        if isinstance(loaded, LoadedEmbedder):
            worker = EmbeddingLoop(loaded.context, loaded.policy, post_vectors, self._clock, loaded.finish)
        else:
            if loaded.projector is not None:
                policy = loaded.policy
                places = QueueLimits(PLACED_FACTOR * policy.sequences, policy.queue, policy.queue_per_actor)
                self._encoder = MediaEncoder(loaded.projector, spec.media_memory, places)
            numbers = None if self._encoder is None else self._encoder.numbers
            sampler, scheduler = Sampler(loaded.info.vocabulary), Scheduler(loaded.policy, numbers)
            post = EventPost(loop).post
            worker = DecodeLoop(
                loaded.context,
                scheduler,
                sampler,
                loaded.end_ids,
                post,
                self._clock,
                BoundThreads() if binding and sys.platform == "linux" else None,
            )
        ready.set_result((loaded, worker))
        worker.run()
        self._end_tokenizing()
        if self._encoder is not None:
            self._encoder.end()
        loaded.close()

    def _end_tokenizing(self) -> None:
        """Waits for texts that are being tokenized, and accepts no more. They use the model, so it must not
        be freed before."""
        for threads in (self._text_threads, self._long_text_threads):
            threads.shutdown()

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Runs one sequence. Closing the generator ends the sequence, and returns when all resources of the
        sequence are free."""
        async with self._run_sequence(request, None) as stream:
            while (event := await stream.take()) is not None:
                yield event

    async def push(self, request: TokenRequest, sink: EventSink) -> None:
        """Runs one sequence, and passes its events to the sink on the decode thread or the event loop.
        Returns when all resources of the sequence are free. A cancellation ends the sequence."""
        async with self._run_sequence(request, sink) as stream:
            await stream.take()

    @asynccontextmanager
    async def _run_sequence(
        self, request: TokenRequest, sink: EventSink | None
    ) -> AsyncIterator[SequenceStream]:
        """Checks a request, encodes its media, and gives its sequence to the decode thread. Afterwards ends
        the sequence unless it has ended, and waits until its resources are free."""
        start_time = self._clock()
        async with AsyncExitStack() as place:
            if request.prompt.media:
                await place.enter_async_context(
                    self._get_encoder().hold_place(request.actor, request.priority)
                )
            placed_prompt = await self._place(request)
            sequence = self._build_sequence(request, placed_prompt)
            if request.adapter is not None:
                await self._adapters.prepare(request.adapter)
            if request.constraint is not None:
                sequence.guide = await self._get_constraints().create_guide(request.constraint)
            stream = SequenceStream(sequence, start_time, sink)
            self._get_decode_loop().submit(stream)
            try:
                yield stream
            finally:
                if stream.end_event is None:
                    self._get_decode_loop().close(stream)
                    await stream.wait_for_end()

    async def embed(self, request: EmbedRequest) -> AsyncGenerator[SequenceStarted | Vectors, None]:
        """Makes vectors. Closing the generator ends the request, and returns when all resources of the
        request are free."""
        embedder = self._get_embedding_loop()
        self._require_texts(request)
        stream = EmbeddingStream(request, self._clock())
        embedder.submit(stream)
        try:
            while (event := await stream.take()) is not None:
                yield event
        finally:
            if stream.end_event is None:
                embedder.close(stream)
                await stream.wait_for_end()

    async def check(self, constraint: Constraint) -> None:
        """Raises an error with the reason if the engine cannot follow a constraint."""
        await self._get_constraints().check(constraint)

    async def add_adapter(self, digest: str, path: str) -> None:
        """Makes an adapter usable while sequences run; `digest` is the SHA-256 of its file."""
        await self._adapters.add(digest, Path(path))

    async def remove_adapter(self, digest: str) -> None:
        """Refuses an adapter to new sequences; running ones go on."""
        await self._adapters.remove(digest)

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        """Returns the token ids of the joined pieces. Short texts do not wait for long ones."""
        is_long = sum(len(piece.text) for piece in pieces) > LONG_TEXT
        threads = self._long_text_threads if is_long else self._text_threads
        return await self._run_on_tokenizer_thread(
            lambda: self._get_tokenizer().tokenize(pieces, add_bos), threads
        )

    async def lay_out(self, shapes: Sequence[MediumShape]) -> tuple[MediumLayout, ...]:
        """Tells how a prompt shows media of these shapes."""
        encoder = self._get_encoder()
        return await self._run_on_tokenizer_thread(
            lambda: tuple(map(encoder.lay_out, shapes)), self._long_text_threads
        )

    def has_encoded(self, digest: str, cache_salt: str) -> bool:
        """Whether a medium is encoded for sequences with this cache salt."""
        return self._get_encoder().has_encoded((cache_salt, digest))

    def watch_encodes(self, report: Callable[[str], None]) -> None:
        """Calls `report` around each encode, if the model has a projector."""
        if self._encoder is not None:
            self._encoder.report = report

    def refuse_medium(self, refused: RefusedMedium) -> None:
        """Refuses a medium before it is encoded."""
        if self._encoder is not None:
            self._encoder.refused[refused.digest] = refused.until

    @asynccontextmanager
    async def hold(self, medium: Medium, cache_salt: str = "") -> AsyncIterator[None]:
        """Has a medium for sequences that name its digest, while the context lasts."""
        with self._get_encoder().hold(medium, cache_salt):
            yield

    async def vocabulary(self) -> Vocabulary:
        """The table of token ids."""
        if self._vocabulary is None:
            model = self._get_loaded().model
            self._vocabulary = await self._run_on_tokenizer_thread(lambda: read_vocabulary(model))
        return self._vocabulary

    async def info(self) -> EngineInfo:
        """Returns the model's facts and the current load."""
        loaded, load = self._get_loaded(), self._get_loop().measure_load()
        if self._encoder is not None:
            load = replace(load, queued=load.queued + self._encoder.waiting_count)
        if devices := loaded.info.devices:
            load = replace(load, devices=measure_devices(loaded.model.library, devices))
        return replace(loaded.info, load=load)

    async def aclose(self) -> None:
        """Ends every sequence, then frees the model."""
        if self._constraints is not None:
            await self._constraints.aclose()
        if self._worker is not None:
            self._worker.stop()
        await asyncio.to_thread(self._end_tokenizing)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    # --- checks of requests

    async def _place(self, request: TokenRequest) -> PlacedPrompt:
        """Returns the prompt of a request with its media, which are encoded if needed."""
        ids = request.prompt.ids
        if not request.prompt.media:
            self._require_known_tokens(ids)
            return PlacedPrompt(ids)
        if request.prompt_logprobs is not None:
            raise UnsupportedParameter(
                "prompt_logprobs is not supported: a prompt with pictures or recordings is not scored",
                param="prompt_logprobs",
            )
        words = tuple(token for token in ids if token != MEDIUM_CELL)
        self._require_known_tokens(words)
        placed_prompt = await self._get_encoder().place(request.prompt, request.cache_salt, request.actor)
        covered = sum(run.stop - run.start for run in placed_prompt.runs)
        if covered + len(words) != len(ids) or ids[-1] == MEDIUM_CELL:
            raise InvalidValue(
                "a prompt must end with a token, and have a medium for each cell", param="prompt"
            )
        return placed_prompt

    def _build_sequence(self, request: TokenRequest, placed_prompt: PlacedPrompt) -> TokenSequence:
        """Builds the sequence of a request. Raises a RequestError with the reason if the sequence cannot
        run."""
        loaded = self._get_generator()
        prompt = placed_prompt.tokens
        context = loaded.info.context_length
        if not prompt:
            raise InvalidValue("the prompt has no tokens; give at least one", param="prompt")
        if len(prompt) + min(request.max_tokens, 1) > context:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {context} tokens, one of which is the answer's. "
                f"However, your prompt has {len(prompt)} tokens. Please reduce the length of the prompt.",
                param="prompt",
            )
        if request.max_tokens < (0 if request.prompt_logprobs is not None else 1):
            raise InvalidValue(
                "max_tokens must be at least 1, or 0 to score the prompt alone", param="max_tokens"
            )
        for name in ("logprobs", "prompt_logprobs"):
            requested = getattr(request, name)
            if requested is not None and not 0 <= requested <= loaded.info.vocabulary:
                raise InvalidValue(f"{name} must be from 0 to {loaded.info.vocabulary}", param=name)
        if request.constraint is not None and request.sampling.ignore_eos:
            problem = "ignore_eos has no meaning together with a constraint; leave one of them out"
            raise InvalidValue(problem, param="ignore_eos")
        self._require_known_tokens(request.prediction, "prediction")
        if request.prediction and not loaded.info.takes_predictions:
            raise UnsupportedParameter(
                f"prediction is not supported: {REFUSALS['prediction']}", param="prediction"
            )
        sampling_state = SamplingState(
            request.sampling,
            request.choice,
            request.logprobs,
            prompt=prompt if not placed_prompt.runs else tuple(token for token in prompt if token >= 0),
            end_tokens=loaded.end_ids,
            stop_tokens=request.stop_token_ids,
            vocabulary_size=loaded.info.vocabulary,
            listed_tokens=request.logprob_token_ids,
        )
        return TokenSequence(request, prompt, context, sampling_state, placed_prompt.runs)

    def _require_texts(self, request: EmbedRequest) -> None:
        """Checks that the model can make vectors of these texts. Raises EngineUnavailable before the model is
        loaded, and a RequestError with the reason if a text is empty, too long or invalid."""
        context_length = self._get_loaded().info.context_length
        if not request.texts or not all(request.texts):
            raise InvalidValue("a text has no tokens; give at least one", param="input")
        for text in request.texts:
            self._require_known_tokens(text)
            if len(text) > context_length:
                raise ContextLengthExceeded(
                    f"This model's maximum context length is {context_length} tokens. However, a text has "
                    f"{len(text)} tokens. Please reduce the length of the input.",
                    param="input",
                )

    def _require_known_tokens(self, tokens: Sequence[int], field: str = "prompt") -> None:
        """Raises InvalidValue if a token id is outside the vocabulary."""
        size = self._get_loaded().info.vocabulary
        if tokens and not 0 <= min(tokens) <= max(tokens) < size:
            unknown_token = min(tokens) if min(tokens) < 0 else max(tokens)
            problem = f"{unknown_token} is no token id of this model; its ids go from 0 to {size - 1}"
            raise InvalidValue(problem, param=field)

    # --- the parts of the loaded model

    async def _run_on_tokenizer_thread(
        self, work: Callable[[], Result], threads: Executor | None = None
    ) -> Result:
        """Runs a function on one of the two tokenizing threads and returns its result."""
        return await asyncio.get_running_loop().run_in_executor(threads or self._text_threads, work)

    def _get_loaded(self) -> LoadedModel:
        """Returns the loaded model. Raises EngineUnavailable before it is loaded."""
        if self._loaded is None:
            raise EngineUnavailable("the model is not loaded yet; try again soon")
        return self._loaded

    def _get_loop(self) -> WorkLoop:
        """Returns the loop of the decode or embedding thread. Raises EngineUnavailable before the model is
        loaded."""
        if self._worker is None:
            raise EngineUnavailable("the model is not loaded yet; try again soon")
        return self._worker

    def _get_generator(self) -> LoadedGenerator:
        """Returns the loaded model if it makes tokens. Raises UnsupportedParameter if it makes vectors."""
        loaded = self._get_loaded()
        if isinstance(loaded, LoadedEmbedder):
            raise UnsupportedParameter("this model makes vectors of texts, and no tokens", param="model")
        return loaded

    def _get_decode_loop(self) -> DecodeLoop:
        """Returns the decode loop. Raises UnsupportedParameter if the model makes vectors."""
        self._get_generator()
        worker = self._get_loop()
        if isinstance(worker, EmbeddingLoop):
            raise TypeError("a model that makes tokens has no embedding loop")
        return worker

    def _get_embedding_loop(self) -> EmbeddingLoop:
        """Returns the embedding loop. Raises UnsupportedParameter if the model makes tokens."""
        worker = self._get_loop()
        if not isinstance(worker, EmbeddingLoop):
            raise UnsupportedParameter("this model makes tokens, and no vectors of texts", param="model")
        return worker

    def _get_constraints(self) -> ModelConstraints:
        """Returns the checker of constraints. The first call builds it."""
        if self._constraints is None:
            self._constraints = ModelConstraints(self.vocabulary, self._get_generator().model.tokenize)
        return self._constraints

    def _get_encoder(self) -> MediaEncoder:
        """Returns the encoder. Raises UnsupportedParameter if the model takes text alone."""
        self._get_generator()
        if self._encoder is None:
            raise UnsupportedParameter("this model takes no pictures and no recordings", param="messages")
        return self._encoder

    def _get_tokenizer(self) -> NativeTokenizer:
        """Returns the tokenizer. The first call builds it."""
        if self._tokenizer is None:
            self._tokenizer = NativeTokenizer(self._get_loaded().model)
        return self._tokenizer
