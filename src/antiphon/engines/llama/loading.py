"""From a load order to a model that is ready to compute: library, weights, context, facts.

It blocks for as long as loading takes, so it runs on the decode thread, which owns the result.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from antiphon.domain.sampling import AskedSampling
from antiphon.engines.base import EngineInfo, LoadSpec
from antiphon.engines.llama.libllama_context import KV_TYPES, ContextShape, NativeContext
from antiphon.engines.llama.libllama_find import find_library
from antiphon.engines.llama.libllama_model import NativeModel
from antiphon.engines.llama.machine import best_threads
from antiphon.engines.llama.proof import alike_row_counts
from antiphon.engines.llama.scheduler import Policy
from antiphon.errors import LoadError

MICRO_ROWS = 128
"""Rows of one pass through the network, and in exact mode of a prompt's chunk. More gain little speed on a
CPU and take memory; fewer can be aborted sooner.
"""

MOST_SEQUENCES = 256
"""llama.cpp's own limit."""

NO_VOCABULARY = 0
"""llama_vocab_type of a model without a tokenizer: asked for a token, the library aborts the process."""

MOST_CELLS = 2**31 - 1
"""Of all sequences together; llama.cpp counts them in 32 bits."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model and its context; whoever has it closes it."""

    model: NativeModel
    context: NativeContext
    policy: Policy
    info: EngineInfo
    ends: frozenset[int]

    def close(self) -> None:
        self.context.close()
        self.model.close()


def load_model(spec: LoadSpec) -> Loaded:
    """Loads and proves. Raises a StartupError."""
    if not 1 <= spec.sequences <= MOST_SEQUENCES:
        raise LoadError(f"the number of sequences is {spec.sequences}; it must be from 1 to {MOST_SEQUENCES}")
    if spec.kv_type not in KV_TYPES:
        raise LoadError(f"the KV type is {spec.kv_type!r}; it must be one of {', '.join(KV_TYPES)}")
    if spec.prefill_chunk < 1:
        raise LoadError(f"the prefill chunk is {spec.prefill_chunk} tokens; it must be at least 1")
    library, place = find_library(spec.library)
    model = NativeModel(library, Path(spec.model), spec.check_tensors)
    try:
        if not model.generates():
            raise LoadError(
                f"{Path(spec.model).name} cannot be served: it needs to be a model that makes text token by "
                "token, with attention in every layer"
            )
        if model.vocabulary_type() == NO_VOCABULARY:
            raise LoadError(
                f"{Path(spec.model).name} cannot be served: it has no tokenizer; convert it together with one"
            )
        context = NativeContext(model, context_shape(spec, model))
    except BaseException:
        model.close()
        raise
    try:
        return Loaded(
            model=model,
            context=context,
            policy=policy(spec, context, model.size),
            info=describe(model, context, spec, f"{place.origin}, {library.version()}"),
            ends=frozenset(token for token in range(model.size) if model.ends(token)),
        )
    except BaseException:
        context.close()
        model.close()
        raise


def context_shape(spec: LoadSpec, model: NativeModel) -> ContextShape:
    """Sizes for the order. Flash attention is on in the pool, where it need not hold scores of every cell."""
    cells = spec.context_length or model.trained_context()
    if not 1 <= cells * spec.sequences <= MOST_CELLS:
        raise LoadError(
            f"{spec.sequences} sequences of {cells} tokens cannot be held; "
            "lower the context length or the number of sequences"
        )
    return ContextShape(
        cells=cells if spec.exact else cells * spec.sequences,
        sequences=spec.sequences,
        rows=min(spec.prefill_chunk + spec.sequences, cells * spec.sequences),
        micro_rows=MICRO_ROWS,
        threads=spec.threads or best_threads(),
        unified=not spec.exact,
        flash=not spec.exact,
        kv_type=spec.kv_type,
    )


def policy(spec: LoadSpec, context: NativeContext, vocabulary: int) -> Policy:
    """The scheduler's sizes; in exact mode after proving which numbers of rows it may use."""
    counts = alike_row_counts(context, vocabulary) if spec.exact else ()
    chunk = min(MICRO_ROWS, spec.prefill_chunk)
    return Policy(spec.sequences, chunk, spec.prefill_chunk, spec.exact, counts)


def describe(model: NativeModel, context: NativeContext, spec: LoadSpec, library: str) -> EngineInfo:
    """What is loaded, for people and for the renderer."""
    return EngineInfo(
        architecture=model.metadata("general.architecture") or "unknown",
        parameters=model.parameters(),
        size=model.weight(),
        quantization=quantization(model.description()),
        trained_context=model.trained_context(),
        context_length=spec.context_length or model.trained_context(),
        vocabulary=model.size,
        sequences=spec.sequences,
        threads=context.shape.threads,
        exact=spec.exact,
        library=library,
        library_path=str(model.library.path),
        cpu_features=model.library.cpu_features(),
        chat_template=model.chat_template(),
        sampling=sampling_defaults(model),
    )


def quantization(description: str) -> str:
    """llama.cpp's words for the file type as everybody writes it: `Q4_K - Medium` is Q4_K_M."""
    kind = description.split(" ", 2)[-1].removeprefix("all ").removesuffix(" (guessed)")
    return re.sub(r" - (Small|Medium|Large)$", lambda size: f"_{size[1][0]}", kind)


def sampling_defaults(model: NativeModel) -> AskedSampling:
    """The sampling that the weights recommend, where they do and it is in the range of a request's."""

    def number(name: str, most: float) -> float | None:
        try:
            value = float(model.metadata(f"general.sampling.{name}") or "nan")
        except ValueError:
            return None
        return value if 0 <= value <= most else None

    top_k = number("top_k", model.size)
    return AskedSampling(
        temperature=number("temp", 2.0),
        top_p=number("top_p", 1.0),
        top_k=None if top_k is None else int(top_k),
        min_p=number("min_p", 1.0),
    )
