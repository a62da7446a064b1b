"""Loads a model from its specification: library, weights, context, facts.

It blocks as long as loading takes, so it runs on the decode thread, which owns the result.

In exact mode, a decode may have only certain numbers of rows: those with which every row is computed alike,
bit for bit. Matrix kernels of llama.cpp differ with the number of rows: F16 weights use one kernel for a
single row and another one for several, and K quantizations have one for each four or eight rows. So loading
tests these weights on this machine: a few tokens of each sequence must give the same logits with every
allowed number of rows, at any position among the rows.
"""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.request import SamplingOptions
from antiphon.domain.values import Struct
from antiphon.engines.base import DraftMode, EngineInfo, KVLayout, LoadSpec
from antiphon.engines.llama.drafting import DraftPolicy
from antiphon.engines.llama.libllama.context import KV_TYPES, ContextSizes, DecodeStatus, NativeContext
from antiphon.engines.llama.libllama.layer_sizes import read_layer_sizes
from antiphon.engines.llama.libllama.library import Library, find_library
from antiphon.engines.llama.libllama.media import NativeProjector
from antiphon.engines.llama.libllama.model import NativeModel
from antiphon.engines.llama.libllama.placement import (
    ON_PROCESSOR,
    LayerPlacement,
    build_memory_error,
    build_tensor_error,
    can_compute_with,
    choose_devices,
    list_backends,
    list_devices,
    place_layers,
    reduce_placement,
    requests_devices,
    require_offload,
)
from antiphon.engines.llama.machine import choose_thread_count
from antiphon.engines.llama.sequence import MAX_IDS, SchedulingPolicy
from antiphon.errors import DeviceMemoryExceeded, LoadError

KV_BYTES = {"f16": 2, "f32": 4}
"""Bytes of a number in each type of KV cache."""

MICRO_ROWS = 512
"""Rows of one pass through the network: as many prompt tokens as a step computes. Each pass reads all
weights, and its threads synchronise after each operation; more rows take more memory."""

EXACT_ROWS = 128
"""Rows of one pass in exact mode. It is also the size of a chunk there: only whole chunks of a prefix can be
shared, so smaller chunks lose less."""

KEPT_DIVISOR = 4
"""A pool keeps prefixes in at most one fourth of its cells, because attention passes over each kept cell in
every step. If all unused cells were kept, a step would take more than twice the time."""

LOGITS_BYTES = 32 * 1024 * 1024
"""Bytes for the library's rows of logits. It needs one row for each sequence id; the remaining bytes serve
scored prompts."""

FEWEST_SCORED = 16
"""The fewest prompt tokens that are scored at once, however large the vocabulary."""

MIN_TURN_SECONDS = 0.05
"""The fewest seconds of an adapter's turn while other adapters wait. Readers do not notice so short a wait,
and a change of adapters takes only some milliseconds of it."""

SINGLE_THREAD_BYTES = 8 * 1024 * 1024
"""The most bytes of weights with which one thread computes a decode of one row. Several threads would mostly
wait for each other: they are no faster on an idle machine, and many times slower on a busy one.

This is a fixed rule, not a measurement at the start: one and two threads give other bits for a single row
with more than some hundred cells, so a choice by time would make equal seeds differ between two starts. Exact
mode promises equal bits alone and in a batch, so all threads compute its single rows too."""

NO_VOCABULARY = 0
"""llama_vocab_type of a model without a tokenizer. If such a model has to tokenize, the library aborts the
process."""

MAX_CELLS = 2**31 - 1
"""The most cells of all sequences together; llama.cpp counts them in 32 bits."""


class LoadedGenerator(Struct, frozen=True):
    """A model that generates tokens, with its context. The owner closes it."""

    model: NativeModel
    context: NativeContext
    policy: SchedulingPolicy
    info: EngineInfo
    end_ids: frozenset[int]
    projector: NativeProjector | None = None

    def close(self) -> None:
        self.context.close()
        if self.projector is not None:
            self.projector.close()
        self.model.close()


def load_model(spec: LoadSpec) -> LoadedGenerator:
    """Loads a model that generates tokens, and tests it. Raises a StartupError."""
    return load_placed(spec, load_generator)


Loaded = TypeVar("Loaded")


def load_placed(spec: LoadSpec, load: Callable[[LoadSpec, NativeModel, str], Loaded]) -> Loaded:
    """Opens the library, places the layers, opens the weights and calls `load` with them. If the library
    cannot allocate a placement that no setting requests, tries a placement with fewer layers on devices.

    `load` gets the specification, the weights, and the package or setting from which the library comes.
    Raises a StartupError.
    """
    require_valid_spec(spec)
    library, library_file = find_library(spec.library)
    origin = f"{library_file.origin}, {library.describe_version()}"
    path, offload = Path(spec.model), plan_offload(spec, library)
    placement = offload.placement
    while True:
        try:
            model = NativeModel(library, path, spec.check_tensors, spec.weights_in_memory, placement)
            return load(spec, model, origin)
        except DeviceMemoryExceeded:
            if spec.gpu_layers is not None:
                raise offload.build_memory_error(spec, placement) from None
            placement = reduce_placement(placement, offload.layer_bytes, spec.tensor_split)


def require_valid_spec(spec: LoadSpec) -> None:
    """Raises LoadError for values that are valid for no model."""
    if not 1 <= spec.sequences <= MAX_IDS:
        raise LoadError(f"the number of sequences is {spec.sequences}; it must be from 1 to {MAX_IDS}")
    if spec.kv_type not in KV_TYPES:
        raise LoadError(f"the KV type is {spec.kv_type!r}; it must be one of {', '.join(KV_TYPES)}")
    if spec.gpu_layers == 0 and (spec.devices or spec.tensor_split):
        raise LoadError(
            "gpu_layers = 0 leaves no layer for devices and tensor_split; leave gpu_layers out, or leave "
            "devices and tensor_split out"
        )
    if spec.exact and spec.drafts is not DraftMode.OFF:
        raise LoadError(
            "exact = true takes no drafts, because they change the last bits of an answer; leave drafts or "
            "exact out"
        )
    if spec.get_prefill_chunk() < 1:
        raise LoadError(f"the prefill chunk is {spec.prefill_chunk} tokens; it must be at least 1")


class Offload(Struct, frozen=True):
    """A placement of layers, and the bytes of each layer by which it was chosen."""

    placement: LayerPlacement = ON_PROCESSOR
    layer_bytes: tuple[int, ...] = ()

    def build_memory_error(self, spec: LoadSpec, placement: LayerPlacement) -> DeviceMemoryExceeded:
        """Builds the error for requested layers that the library could not allocate."""
        name = Path(spec.model).name
        return build_memory_error(
            placement.gpu_layer_count, self.layer_bytes, placement.devices, spec.tensor_split, name
        )


def plan_offload(spec: LoadSpec, library: Library) -> Offload:
    """Chooses the layers on devices. Does not read the file if no layer can go to a device. Raises
    LoadError."""
    if spec.gpu_layers == 0 or (spec.exact and not requests_devices(spec)):
        return Offload()
    all_devices = list_devices(library)
    require_offload(spec, all_devices, list_backends(library))
    if not all_devices:
        return Offload()
    devices = choose_devices(all_devices, spec.devices, spec.hosts)
    sizes = read_layer_sizes(library, Path(spec.model))
    length = spec.context_length or sizes.trained_context
    cells = length if sizes.embeds else spec.cells or length * spec.sequences
    number_bytes = KV_BYTES[spec.kv_type]
    layer_bytes = sizes.add_cells(cells, number_bytes)
    tensor_bytes = sizes.widest_cell * cells * number_bytes
    capable = tuple(device for device in devices if can_compute_with(library, device, tensor_bytes))
    if not requests_devices(spec):
        devices = capable
    if not devices:
        return Offload()
    placement = place_layers(spec, devices, layer_bytes, Path(spec.model).name)
    device_counts = zip(placement.devices, placement.counts, strict=True)
    incapable = [device for device, count in device_counts if count and device not in capable]
    if incapable:
        raise build_tensor_error(tensor_bytes, incapable)
    return Offload(placement, layer_bytes)


def load_generator(spec: LoadSpec, model: NativeModel, origin: str) -> LoadedGenerator:
    """Prepares a model that generates tokens to compute. If that fails, frees its weights."""
    projector: NativeProjector | None = None
    try:
        if not model.is_generative():
            raise LoadError(
                f"{Path(spec.model).name} cannot be served: it needs to be a model that makes text token by "
                "token, with attention in every layer"
            )
        if model.get_vocabulary_type() == NO_VOCABULARY:
            raise LoadError(
                f"{Path(spec.model).name} cannot be served: it has no tokenizer; convert it together with one"
            )
        projector = load_projector(spec, model)
        context = NativeContext(model, choose_sizes(spec, model, projector))
    except BaseException:
        if projector is not None:
            projector.close()
        model.close()
        raise
    try:
        policy = build_policy(spec, context, model.size)
        return LoadedGenerator(
            model=model,
            context=context,
            policy=policy,
            info=describe(model, context, spec, origin, policy.drafts.is_possible, projector),
            end_ids=frozenset(token for token in range(model.size) if model.is_end(token)),
            projector=projector,
        )
    except BaseException:
        context.close()
        if projector is not None:
            projector.close()
        model.close()
        raise


def load_projector(spec: LoadSpec, model: NativeModel) -> NativeProjector | None:
    """Loads and tests the projector of a model, if it has one. Raises a StartupError."""
    if spec.mmproj is None:
        return None
    projector = NativeProjector(
        model, Path(spec.mmproj), choose_threads(spec), spec.image_max_tokens, spec.image_min_tokens
    )
    try:
        projector.test()
    except BaseException:
        projector.close()
        raise
    return projector


def choose_threads(spec: LoadSpec) -> int:
    """The number of threads that compute."""
    return spec.threads or max(1, choose_thread_count() // spec.hosts)


def count_sequence_cells(spec: LoadSpec, trained: int) -> int:
    """The cells that one sequence may fill: the context length, but not more than the cells that the sequence
    can get."""
    requested_cells = spec.context_length or trained
    if spec.cells is None:
        return requested_cells
    return min(requested_cells, spec.cells // spec.sequences if has_streams(spec) else spec.cells)


def has_streams(spec: LoadSpec) -> bool:
    """Whether each sequence gets its own stream of cells."""
    return spec.exact or spec.layout is KVLayout.STREAMS


def choose_sizes(
    spec: LoadSpec, model: NativeModel, projector: NativeProjector | None = None
) -> ContextSizes:
    """The sizes of the context. Flash attention is on unless results must be bit-equal, because it takes less
    memory: it does not store the scores of every cell. A decode must hold a whole picture whose cells see
    each other, and compute it in one pass: otherwise the library ends the process."""
    cells = count_sequence_cells(spec, model.get_trained_context())
    total = spec.cells or cells * spec.sequences
    if cells < 1 or not 1 <= total <= MAX_CELLS:
        raise LoadError(
            f"{spec.sequences} sequences of {cells} tokens cannot be held; "
            "lower the context length or the number of sequences"
        )
    keeps_prefixes = spec.keep_prefixes and not has_streams(spec)
    ids = (
        max(spec.sequences, min(MAX_IDS, count_logit_rows(model.size))) if keeps_prefixes else spec.sequences
    )
    whole_rows = 0 if projector is None or projector.is_causal else projector.most_cells
    if whole_rows > total:
        raise LoadError(
            f"a picture takes {whole_rows} tokens, and the context has {total}; raise the context length"
        )
    rows = max(whole_rows, min(spec.get_prefill_chunk() + spec.sequences, total))
    return ContextSizes(
        cells=cells if has_streams(spec) else total,
        sequences=ids,
        rows=rows,
        micro_rows=max(whole_rows, EXACT_ROWS if spec.exact else MICRO_ROWS),
        threads=choose_threads(spec),
        single_row_threads=1 if not spec.exact and model.count_bytes() <= SINGLE_THREAD_BYTES else 0,
        unified=not has_streams(spec),
        flash=not spec.exact,
        kv_type=spec.kv_type,
        adapter_memory=spec.adapter_memory,
        outputs=max(ids, min(rows, spec.sequences + count_scored_rows(spec, model.size))),
    )


def count_logit_rows(vocabulary: int) -> int:
    """The number of rows of logits that fit into LOGITS_BYTES."""
    return LOGITS_BYTES // (4 * vocabulary)


def count_scored_rows(spec: LoadSpec, vocabulary: int) -> int:
    """The number of prompt tokens that are scored at once."""
    return max(FEWEST_SCORED, min(EXACT_ROWS, count_logit_rows(vocabulary) - spec.sequences))


def build_policy(spec: LoadSpec, context: NativeContext, vocabulary: int) -> SchedulingPolicy:
    """Builds the scheduling policy. In exact mode, first finds the allowed numbers of decode rows, by tests
    on this machine."""
    row_counts = find_alike_row_counts(context, vocabulary) if spec.exact else range(1, spec.sequences + 1)
    # A row that a sequence computes alone has other bits than the same row behind others of the sequence,
    # because attention without flash adds up the cells in another order for a single row.
    drafts = (
        DraftPolicy()
        if spec.exact
        else DraftPolicy(
            spec.drafts,
            measure_row_seconds(context, vocabulary),
            min(count_scored_rows(spec, vocabulary), spec.get_prefill_chunk()),
        )
    )
    return SchedulingPolicy(
        sequences=spec.sequences,
        chunk=min(EXACT_ROWS, spec.get_prefill_chunk()),
        budget=spec.get_prefill_chunk(),
        cells=context.shape.cells,
        exact=spec.exact,
        layout=spec.layout,
        ids=context.shape.sequences,
        row_counts=tuple(row_counts),
        scored_rows=count_scored_rows(spec, vocabulary),
        step_latency=spec.step_latency,
        queue=spec.queue,
        queue_per_actor=spec.queue_per_actor,
        keeps_prefixes=spec.keep_prefixes,
        max_kept_cells=context.shape.cells // KEPT_DIVISOR,
        quantum=spec.quantum,
        min_turn=MIN_TURN_SECONDS,
        drafts=drafts,
    )


def describe(
    model: NativeModel,
    context: NativeContext,
    spec: LoadSpec,
    library: str,
    takes_predictions: bool = False,
    projector: NativeProjector | None = None,
) -> EngineInfo:
    """Builds the facts of the loaded model, for operators and for the renderer."""
    return EngineInfo(
        architecture=model.get_metadata("general.architecture") or "unknown",
        parameters=model.count_parameters(),
        size=model.count_bytes(),
        quantization=format_quantization(model.get_description()),
        trained_context=model.get_trained_context(),
        context_length=count_sequence_cells(spec, model.get_trained_context()),
        vocabulary=model.size,
        sequences=spec.sequences,
        threads=context.shape.threads,
        exact=spec.exact,
        library=library,
        library_path=str(model.library.path),
        cpu_features=model.library.list_cpu_features(),
        devices=model.placement.list_devices(),
        chat_template=model.get_chat_template(),
        sampling=read_sampling_defaults(model),
        license=model.get_metadata("general.license"),
        organization=model.get_metadata("general.organization"),
        takes_predictions=takes_predictions,
        media=None if projector is None else projector.facts,
    )


def format_quantization(description: str) -> str:
    """Formats llama.cpp's name of the file type in the common way: `Q4_K - Medium` becomes Q4_K_M."""
    kind = description.split(" ", 2)[-1].removeprefix("all ").removesuffix(" (guessed)")
    return re.sub(r" - (Small|Medium|Large)$", lambda size: f"_{size[1][0]}", kind)


def read_sampling_defaults(model: NativeModel) -> SamplingOptions:
    """The sampling values that the model file recommends, if they are in the range that a request may use."""

    def read_number(name: str, maximum: float) -> float | None:
        """Reads a sampling value from the model file. None if there is no number from 0 to `maximum`."""
        try:
            value = float(model.get_metadata(f"general.sampling.{name}") or "nan")
        except ValueError:
            return None
        return value if 0 <= value <= maximum else None

    top_k = read_number("top_k", model.size)
    return SamplingOptions(
        temperature=read_number("temp", 2.0),
        top_p=read_number("top_p", 1.0),
        top_k=None if top_k is None else int(top_k),
        min_p=read_number("min_p", 1.0),
    )


TEST_STEPS = 2
"""The number of tokens that are tested for each sequence. The logits of the second token also depend on the
cells that the first token has filled."""

LONE_TRIES = 8
"""The number of sequences that are tested alone. A single row is computed differently from a row among others
most often, and some sequences may give equal logits by luck."""


def find_alike_row_counts(context: NativeContext, vocabulary: int) -> tuple[int, ...]:
    """Finds the numbers of decode rows, up to all sequences, with which every row is computed alike. Raises
    LoadError if there are none."""
    max_rows = context.shape.sequences
    tokens = np.linspace(1, vocabulary - 1, TEST_STEPS * max_rows, dtype=np.int32).reshape(
        TEST_STEPS, max_rows
    )
    probe = _RowProbe(context, tokens)
    # If lone rows, three rows, and all rows but one agree with all rows, no kernel depends on the number of
    # rows.
    sample_counts = {1, min(3, max_rows), max(1, max_rows - 1)}
    row_counts = [count for count in sorted(sample_counts) if probe.agrees(count)]
    if set(row_counts) == sample_counts:
        return tuple(range(1, max_rows + 1))
    if not probe.agrees_in_any_order():
        raise LoadError(
            "on this machine the result of a row of this model depends on its position among the rows, so "
            "exact = true is not possible; leave it out, or use weights of another type"
        )
    more_counts = [
        count for count in range(1, max_rows) if count not in sample_counts and probe.agrees(count)
    ]
    return tuple(sorted({*row_counts, *more_counts, max_rows}))


MEASURED_ROWS = (1, 2, 4, 8, 16)
"""The numbers of rows of one sequence whose time is measured at load."""

MEASURING_TURNS = 4

MEASURING_SECONDS = 2.0
"""After this time, no more numbers of rows are measured at load. Each missing row then counts as much as the
last measured ones."""


def measure_row_seconds(
    context: NativeContext, vocabulary: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, ...]:
    """Measures the seconds of a decode of 1, 2, 3... rows of one sequence. Interpolates between the measured
    numbers."""
    started_at, measured = clock(), dict[int, float]()
    most_rows = min(context.shape.rows, context.shape.cells)
    _time_rows(context, vocabulary, min(2, most_rows), clock)  # the first decode also allocates
    # The first turn finds cold memory and threads that sleep, so each number counts by its fastest turn.
    for turn in range(MEASURING_TURNS):
        for rows in MEASURED_ROWS:
            is_late = (turn or rows > 2) and clock() - started_at > MEASURING_SECONDS
            if is_late or rows > most_rows or (turn and rows not in measured):
                break
            seconds = _time_rows(context, vocabulary, rows, clock)
            measured[rows] = max(1e-9, min(seconds, measured.get(rows, seconds)))
    # Other work on the machine only slows a decode down, and more rows never take less time.
    rising_seconds = np.minimum.accumulate(list(measured.values())[::-1])[::-1]
    return tuple(np.interp(range(1, max(measured) + 1), list(measured), rising_seconds).tolist())


def _time_rows(context: NativeContext, vocabulary: int, rows: int, clock: Callable[[], float]) -> float:
    """Returns the seconds of a decode of so many rows of one sequence, all with logits, and frees its
    cells."""
    context.set_rows(0, [row % vocabulary for row in range(rows)], 0, 0, True, all_have_logits=True)
    started_at = clock()
    _compute_logits(context, rows)
    seconds = clock() - started_at
    context.remove(0)
    return seconds


def _compute_logits(context: NativeContext, rows: int) -> NDArray[np.float32]:
    """Computes the first rows of the batch, and returns their logits. Raises LoadError."""
    if context.decode(rows) != DecodeStatus.DONE:
        raise LoadError("the library could not compute a first token with this model; check the file")
    return context.read_logits(rows)


class _RowProbe:
    """Computes tokens of all sequences in one decode, then the same tokens of some sequences, and compares
    the logits."""

    def __init__(self, context: NativeContext, tokens: NDArray[np.int32]) -> None:
        self._context = context
        self._tokens = tokens
        self._whole_logits = list(self._compute_logits(0, tokens.shape[1], tokens))

    def agrees(self, count: int) -> bool:
        """Whether every window of `count` neighbouring sequences gives the same logits as all sequences
        together."""
        last_start = self._tokens.shape[1] - count
        starts = np.linspace(0, last_start, LONE_TRIES if count == 1 else 2, dtype=int)
        return all(self._agrees_at(int(start), count) for start in {*starts})

    def agrees_in_any_order(self) -> bool:
        """Whether all sequences together give the same logits in another order."""
        reversed_order = list(self._compute_logits(0, self._tokens.shape[1], self._tokens[:, ::-1]))
        return all(
            (logits[::-1] == expected).all()
            for logits, expected in zip(reversed_order, self._whole_logits, strict=True)
        )

    def _agrees_at(self, start: int, count: int) -> bool:
        """Whether the `count` sequences from `start` on give the same logits together as among all
        sequences."""
        parts = list(self._compute_logits(start, count, self._tokens))
        window = slice(start, start + count)
        return all(
            (logits == expected[window]).all()
            for logits, expected in zip(parts, self._whole_logits, strict=True)
        )

    def _compute_logits(
        self, start: int, count: int, table: NDArray[np.int32]
    ) -> Iterator[NDArray[np.float32]]:
        """Yields the logits of each step of these sequences, and frees their cells after the last step."""
        context, slots = self._context, np.arange(start, start + count)
        for step, tokens in enumerate(table):
            context.tokens[:count] = tokens[slots]
            context.positions[:count] = step
            context.sequences[:count] = slots
            context.outputs[:count] = 1
            yield _compute_logits(context, count).copy()
        for slot in slots:
            context.remove(int(slot))
