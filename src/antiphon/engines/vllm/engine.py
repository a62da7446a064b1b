"""vLLM's AsyncLLM as a `TokenEngine`.

Requests are checked here, because vLLM does not check everything, and some invalid requests would end it.
`admission` decides which sequences run, and Antiphon's sampler draws inside vLLM (see `plugin`). vLLM does
not report when it admits a sequence, so SequenceStarted comes with the first token. A request whose prompt
ends the engine therefore counts as queued, and callers try it once more.
"""

import asyncio
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.constraints.checker import Checker
from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.mask_workers import build_token_table
from antiphon.domain.request import Constraint
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import (
    Counts,
    EngineInfo,
    LoadSpec,
    SequenceFinished,
    SequenceStarted,
    TextPiece,
    TokenEvent,
    TokenRequest,
    Vocabulary,
)
from antiphon.engines.vllm.adapters import AdapterTable
from antiphon.engines.vllm.admission import Admission, AdmissionLimits, PrefillTurn
from antiphon.engines.vllm.folder import ModelFolder, read_folder
from antiphon.engines.vllm.launch import LaunchedVllm, launch
from antiphon.engines.vllm.load_counter import LoadCounter
from antiphon.engines.vllm.rows import FailureReceiver
from antiphon.engines.vllm.tokenizer import FolderTokenizer
from antiphon.engines.vllm.translation import (
    ModelLimits,
    build_parameters,
    build_scores,
    build_steps,
    find_stop_cause,
    require_valid_request,
)
from antiphon.errors import (
    EngineDied,
    EngineError,
    EngineLost,
    EngineUnavailable,
    InvalidValue,
    UnsupportedParameter,
)
from antiphon.locked_directory import create_locked_directory

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.outputs import RequestOutput


ENGINE_LOST = 4
"""Exit status of an engine host whose engine is gone; the supervisor starts a new one."""

PREFIX = "antiphon-vllm-"
"""The beginning of the names of the directories for sockets and adapters. Each host has one directory, and
removes the directories of killed hosts."""

RETRY_AFTER = 30.0
"""Retry delay in seconds for callers when the engine core has ended. A start takes about that long."""


def create_engine() -> "VllmTokenEngine":
    """Makes the engine of an engine host. The host's process ends when its engine dies, so that the
    supervisor starts a new one."""
    return VllmTokenEngine(on_death=lambda: os._exit(ENGINE_LOST))


class RunningSequence(Struct):
    """A sequence that vLLM runs."""

    name: str
    """vLLM's id of the request."""
    request: TokenRequest
    prompt: tuple[int, ...]
    parameters: dict[str, object]
    lora: "LoRARequest | None"
    requested_at: float
    admitted_at: float
    last_token: int | None = None
    """The last new token; None before the first."""
    token_count: int = 0
    cached_tokens: int = 0
    output_at: float = 0.0
    """The time of the last output; 0 before the first."""


class LoadedParts(Struct, frozen=True):
    """The objects that exist once the model is loaded."""

    vllm: LaunchedVllm
    info: EngineInfo
    limits: ModelLimits
    tokenizer: FolderTokenizer
    admission: Admission
    adapters: AdapterTable
    checker: Checker | None
    keeps_prefixes: bool


class VllmTokenEngine:
    """One model. Call `load` first and only once, and make every call from the same event loop."""

    def __init__(self, on_death: Callable[[], None] = lambda: None) -> None:
        """`on_death`: called when vLLM's engine core has ended."""
        self._on_death = on_death
        self._counter = LoadCounter()
        self._names = map(str, itertools.count(1))
        """The names of sequences, which are vLLM's ids of requests."""
        self._directory, self._lock = create_locked_directory(Path(tempfile.gettempdir()), PREFIX)
        """The directory for sockets and adapters, and the descriptor of its lock."""
        self._failures = FailureReceiver(self._directory)
        self._parts: LoadedParts | None = None

    async def load(self, spec: LoadSpec) -> EngineInfo:
        """Loads the model, and blocks the event loop meanwhile. Raises a StartupError."""
        folder = read_folder(Path(spec.model))
        vllm = launch(spec, folder, self._directory, self._failures.path, self._counter)
        tokenizer = FolderTokenizer(folder, vllm.vocabulary)
        table = tokenizer.vocabulary
        self._parts = LoadedParts(
            vllm=vllm,
            info=describe(spec, folder, vllm),
            limits=ModelLimits(vllm.context_length, vllm.vocabulary, table.end_ids, vllm.is_cpu),
            tokenizer=tokenizer,
            admission=Admission(AdmissionLimits(spec.sequences, spec.queue, spec.queue_per_actor)),
            adapters=self._create_adapter_table(vllm, spec.adapters),
            checker=Checker(build_token_table(table)) if table.end_ids else None,
            keeps_prefixes=spec.keep_prefixes,
        )
        return self._parts.info

    def _create_adapter_table(self, vllm: LaunchedVllm, is_enabled: bool) -> AdapterTable:
        from vllm.lora.request import LoRARequest

        return AdapterTable(vllm.llm if is_enabled else None, self._directory, LoRARequest)

    # --- sequences ------------------------------------------------------------------------------------------

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Runs one sequence. Closing the generator ends it."""
        parts, requested_at = self._get_parts(), time.monotonic()
        prompt = require_valid_request(request, parts.limits)
        grammar = None if request.constraint is None else await self._compile(request.constraint)
        name = next(self._names)
        parameters = build_parameters(request, name, prompt, parts.limits, grammar)
        async with (
            parts.adapters.use(request.adapter) as lora,
            parts.admission.hold_place(request) as prefill,
            prefill.take_turn() as turn,
        ):
            sequence = RunningSequence(
                name, request, prompt, parameters, lora, requested_at, time.monotonic()
            )
            async with aclosing(self._stream(sequence, turn)) as events:
                async for event in events:
                    yield event
        cause = find_stop_cause(request, sequence.last_token, parts.limits)
        yield SequenceFinished(cause, Counts(len(prompt), sequence.token_count, sequence.cached_tokens))

    async def _stream(self, sequence: RunningSequence, turn: PrefillTurn) -> AsyncGenerator[TokenEvent, None]:
        """Yields the events of a sequence, except SequenceFinished."""
        async with aclosing(self._read_outputs(sequence)) as outputs:
            async for output in outputs:
                turn.finish()
                for event in self._build_events(sequence, output):
                    yield event

    async def _read_outputs(self, sequence: RunningSequence) -> AsyncGenerator["RequestOutput", None]:
        """Yields vLLM's outputs of a sequence. Raises the error that ends the sequence."""
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        parameters = SamplingParams(
            output_kind=RequestOutputKind.DELTA, skip_clone=True, **sequence.parameters
        )
        prompt = tokens_input(list(sequence.prompt), cache_salt=self._build_salt(sequence))
        llm = self._get_parts().vllm.llm
        outputs = llm.generate(prompt, parameters, sequence.name, lora_request=sequence.lora)
        try:
            async for output in outputs:
                if (error := self._failures.take(sequence.name)) is not None:
                    raise error
                yield output
        except EngineDeadError:
            self._on_death()
            raise build_death_error(sequence) from None
        except VLLMClientError as problem:
            raise InvalidValue(f"vLLM refuses the request: {problem}") from None
        except EngineGenerateError as problem:
            raise EngineError("vLLM failed at this request", cause=repr(problem.__cause__)) from None
        finally:
            await outputs.aclose()

    def _build_salt(self, sequence: RunningSequence) -> str | None:
        """Returns the salt of the sequence's prefix; None for no salt. If prefixes are not kept for later
        requests, only the sequences of one group get the same salt."""
        salt = sequence.request.cache_salt
        if not self._get_parts().keeps_prefixes:
            salt = f"{salt}\n{sequence.request.group or sequence.name}"
        return salt or None

    def _build_events(self, sequence: RunningSequence, output: "RequestOutput") -> Iterator[TokenEvent]:
        """Yields the events of one output, and counts its tokens."""
        request, now, (completion, *_) = sequence.request, time.monotonic(), output.outputs
        if not sequence.output_at:
            sequence.cached_tokens = output.num_cached_tokens or 0
            queue_seconds = sequence.admitted_at - sequence.requested_at
            first_token_time = now - sequence.requested_at
            self._counter.note_start(
                len(sequence.prompt), sequence.cached_tokens, queue_seconds, first_token_time
            )
            yield SequenceStarted(len(sequence.prompt), sequence.cached_tokens, queue_seconds)
            if request.prompt_logprobs is not None and output.prompt_logprobs:
                scores = build_scores(sequence.prompt, output.prompt_logprobs, request.prompt_logprobs)
                if scores is not None:
                    yield scores
        tokens = completion.token_ids
        if tokens and request.max_tokens:
            if sequence.output_at:
                seconds = (now - sequence.output_at) / len(tokens)
                self._counter.inter_token_seconds.add_several(seconds, len(tokens))
            sequence.token_count += len(tokens)
            sequence.last_token = tokens[-1]
            self._counter.note_tokens(len(tokens), request.adapter)
            yield build_steps(tokens, completion.logprobs, request)
        sequence.output_at = now

    # --- the rest of the interface --------------------------------------------------------------------------

    async def check(self, constraint: Constraint) -> None:
        """Raises an error with the reason if the engine cannot follow a constraint."""
        await self._compile(constraint)

    async def _compile(self, constraint: Constraint) -> Grammar:
        """Returns the grammar of a constraint. Raises the error that refuses it."""
        if (checker := self._get_parts().checker) is None:
            problem = (
                "this model has no end token, so no constrained text could end; leave the constraint out"
            )
            raise UnsupportedParameter(problem)
        return await checker.check(constraint)

    async def add_adapter(self, digest: str, path: str) -> None:
        """Makes an adapter usable while sequences run."""
        await self._get_parts().adapters.add(digest, path)

    async def remove_adapter(self, digest: str) -> None:
        """Refuses an adapter to new sequences; running ones go on."""
        await self._get_parts().adapters.remove(digest)

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        """Returns the token ids of the joined pieces."""
        return await asyncio.to_thread(self._get_parts().tokenizer.tokenize, pieces, add_bos)

    async def vocabulary(self) -> Vocabulary:
        """The table of token ids."""
        return self._get_parts().tokenizer.vocabulary

    async def info(self) -> EngineInfo:
        """The model's facts and the current load. Raises EngineUnavailable when the engine core has ended."""
        parts = self._get_parts()
        if parts.vllm.llm.errored:
            self._on_death()
            raise EngineUnavailable("vLLM's engine core has ended", retry_after=RETRY_AFTER)
        admission, sequences = parts.admission, parts.info.sequences
        sequence_counts = (admission.running, admission.queue_length, sequences - admission.running)
        load = self._counter.build_load(
            sequence_counts, admission.refusal_count, parts.vllm.cells, parts.adapters.users
        )
        return replace(parts.info, load=load)

    async def aclose(self) -> None:
        """Ends every sequence and vLLM's processes."""
        if self._parts is not None:
            if self._parts.checker is not None:
                await self._parts.checker.aclose()
            await asyncio.to_thread(self._parts.vllm.llm.shutdown)
        self._failures.close()
        await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)
        os.close(self._lock)

    def _get_parts(self) -> LoadedParts:
        """Returns the loaded parts. Raises EngineUnavailable before the model is loaded."""
        if self._parts is None:
            raise EngineUnavailable("the model is not loaded yet; try again soon")
        return self._parts


def build_death_error(sequence: RunningSequence) -> EngineUnavailable | EngineDied:
    """Builds the error of a sequence whose engine core has ended. A sequence without a token gets EngineLost,
    so that callers try it once more."""
    if sequence.output_at:
        return EngineDied(
            "vLLM ended while it was generating this answer; try again", retry_after=RETRY_AFTER
        )
    return EngineLost("vLLM ended while this request waited for it; try again", retry_after=RETRY_AFTER)


def describe(spec: LoadSpec, folder: ModelFolder, vllm: LaunchedVllm) -> EngineInfo:
    """Builds the facts of the loaded model."""
    return EngineInfo(
        architecture=folder.architecture,
        parameters=folder.parameters,
        size=folder.size,
        quantization=vllm.dtype,
        trained_context=folder.context_length,
        context_length=vllm.context_length,
        vocabulary=vllm.vocabulary,
        sequences=spec.sequences,
        threads=vllm.threads,
        exact=False,
        library=f"vLLM {vllm.version} ({'CPU' if vllm.is_cpu else 'GPU'})",
        library_path=vllm.path,
        cpu_features=(),
        chat_template=folder.chat_template,
        sampling=folder.sampling,
        portable_seeds=vllm.is_cpu,
    )
