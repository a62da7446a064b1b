"""From a load order to an embedding model that is ready to compute, or to a model that makes tokens: which of
the two it is, the file says.

Like `loading`, which it stands on, it blocks, and runs on the decode thread.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from antiphon.domain.embedding import EmbeddingFacts, Pooling
from antiphon.domain.sampling import AskedSampling
from antiphon.engines.base import EngineInfo, LoadSpec
from antiphon.engines.llama.libllama_context import ContextShape
from antiphon.engines.llama.libllama_embedder import POOLING, RANKING, UNPOOLED, NativeEmbedder
from antiphon.engines.llama.libllama_model import NativeModel
from antiphon.engines.llama.loading import (
    NO_VOCABULARY,
    Loaded,
    describe,
    load_generator,
    open_model,
    require_sane,
)
from antiphon.engines.llama.machine import best_threads
from antiphon.engines.llama.policy import Policy
from antiphon.errors import LoadError

STEP_ROWS = 256
"""Tokens of several texts that one step computes. More gain no speed on a processor, and a step is what
others wait for."""

LONGEST_DEFAULT = 8192
"""Tokens of one text when nobody says otherwise."""

LOGITS_BYTES = 128 * 1024 * 1024
"""The library keeps a row as wide as the vocabulary for each row of a step, though nobody reads it; so a
large vocabulary makes steps smaller."""

FEWEST_ROWS = 64


@dataclass(frozen=True, slots=True)
class LoadedEmbedder:
    """An embedding model and its context; whoever has it closes it."""

    model: NativeModel
    context: NativeEmbedder
    policy: Policy
    info: EngineInfo

    def close(self) -> None:
        self.context.close()
        self.model.close()


def load_any(spec: LoadSpec) -> Loaded | LoadedEmbedder:
    """Loads and proves. Raises a StartupError."""
    require_sane(spec)
    model, origin = open_model(spec)
    try:
        pooling = pooling_of(model, Path(spec.model).name)
        if pooling is not None:
            return load_embedder(spec, model, pooling, origin)
    except BaseException:
        model.close()
        raise
    return load_generator(spec, model, origin)


def pooling_of(model: NativeModel, name: str) -> Pooling | None:
    """How an embedding model pools; None of a model that makes tokens. Raises LoadError where it cannot be
    served."""
    said = int(attribute(model, "pooling_type") or UNPOOLED)
    if said == UNPOOLED:
        if is_causal(model):
            return None
        raise LoadError(
            f"{name} reads a text as a whole and names no pooling, so it makes neither tokens nor vectors; "
            "convert it again together with its pooling"
        )
    if said == RANKING:
        raise LoadError(f"{name} ranks pairs of texts (pooling rank), which is not served")
    if said not in POOLING:
        raise LoadError(f"{name} pools by the unknown type {said}; mean, CLS and last are served")
    return POOLING[said]


def is_causal(model: NativeModel) -> bool:
    """Whether a token sees only those before it."""
    return attribute(model, "attention.causal") != "false"


def attribute(model: NativeModel, key: str) -> str | None:
    """The file's value under its architecture's name."""
    return model.metadata(f"{model.metadata('general.architecture') or ''}.{key}")


def load_embedder(spec: LoadSpec, model: NativeModel, pooling: Pooling, origin: str) -> LoadedEmbedder:
    """An embedding model, ready to compute. Raises a StartupError."""
    if not model.generates():
        raise LoadError(f"{Path(spec.model).name} cannot be served: its kind of encoder is not supported")
    if model.vocabulary_type() == NO_VOCABULARY:
        raise LoadError(
            f"{Path(spec.model).name} cannot be served: it has no tokenizer; convert it together with one"
        )
    longest = text_length(spec, model)
    context = NativeEmbedder(model, context_shape(spec, model, longest), pooling)
    info = replace(
        describe(model, context, spec, origin),
        context_length=longest,
        chat_template=None,
        sampling=AskedSampling(),
        embedding=EmbeddingFacts(model.dimensions(), pooling),
    )
    rows = step_rows(model)
    policy = Policy(
        sequences=spec.sequences,
        chunk=rows,
        budget=rows,
        cells=context.shape.cells,
        exact=spec.exact,
        queue=spec.queue,
        queue_per_actor=spec.queue_per_actor,
        keep=False,
    )
    return LoadedEmbedder(model, context, policy, info)


def text_length(spec: LoadSpec, model: NativeModel) -> int:
    """Tokens that one text may have. Raises LoadError."""
    trained = model.trained_context()
    asked = spec.context_length or min(trained, LONGEST_DEFAULT)
    if not 1 <= asked <= trained:
        raise LoadError(f"the model reads texts of 1 to {trained} tokens; {asked} cannot be its context")
    return asked


def step_rows(model: NativeModel) -> int:
    """Tokens of several texts that one step computes."""
    return max(FEWEST_ROWS, min(STEP_ROWS, LOGITS_BYTES // (4 * model.size)))


def context_shape(spec: LoadSpec, model: NativeModel, longest: int) -> ContextShape:
    """Sizes for the order: a model that is not causal needs its longest text in one pass."""
    rows = step_rows(model) if is_causal(model) else max(longest, step_rows(model))
    return ContextShape(
        cells=max(longest, rows),
        sequences=spec.sequences,
        rows=rows,
        micro_rows=rows,
        threads=spec.threads or best_threads(),
        unified=True,
        flash=True,
        kv_type=spec.kv_type,
        outputs=rows,
    )
