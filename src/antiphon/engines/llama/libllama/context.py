"""A llama_context: the KV cache, the batch arrays and the output of one decode thread.

Only `abort` and `resume`, which set one byte, are thread safe. numpy fills the rows of arrays to which the
native batch always points, so a step builds no ctypes object. The scheduler and the decode loop choose the
rows and use the results.
"""

import ctypes
import logging
from array import array
from collections.abc import Sequence
from enum import IntEnum
from functools import partial

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.request import Pooling
from antiphon.domain.values import Struct
from antiphon.engines.llama.adapter_cache import AdapterCache, LoadedAdapter
from antiphon.engines.llama.libllama.library import Library
from antiphon.engines.llama.libllama.media import EncodedPart
from antiphon.engines.llama.libllama.model import NativeAdapter, NativeModel, set_adapter
from antiphon.engines.llama.libllama.struct_layouts import NativeBatch
from antiphon.errors import EngineDied, EngineError, LibraryError

LOGGER = logging.getLogger(__name__)

KV_TYPES = {"f32": 0, "f16": 1}
"""ggml's numbers of the types that a KV cache may have."""

FLASH_AUTO, FLASH_OFF, FLASH_ON = -1, 0, 1
"""llama_flash_attn_type. With AUTO the library uses it where every device that computes layers has it."""

ABORT_SET, ABORT_CLEAR = b"\1", b"\0"
"""The abort flag's two values: a text of length one or zero, as strlen reads it."""


class DeviceLost(EngineDied):
    """A device that computes layers failed. The error ends the decode thread, and so the process."""


class DecodeStatus(IntEnum):
    """The results of llama_decode; any negative result is a failure."""

    DONE = 0
    NO_ROOM = 1
    """No free cells for the batch; nothing was computed."""
    ABORTED = 2
    """The abort flag was set. Some rows may be in the cache; no row has logits."""


class ContextSizes(Struct, frozen=True):
    """Sizes of a context."""

    cells: int
    """The number of cells of the pool; with streams, of each stream."""
    sequences: int
    """The number of native sequence ids."""
    rows: int
    """The most rows of one decode."""
    micro_rows: int
    """The most rows of one pass through the network; a larger decode takes several passes."""
    threads: int
    unified: bool
    """Whether there is one pool of cells instead of a stream for each sequence."""
    flash: bool
    kv_type: str
    outputs: int = 0
    """The most rows of one decode that give logits; 0 means one for each sequence."""
    single_row_threads: int = 0
    """The number of threads for a decode of one row; 0 means `threads`."""
    adapter_memory: int = 0
    """The most bytes of adapters in memory. The adapter in use stays even if it is larger."""


class NativeContext:
    """Owns a native context until `close`."""

    def __init__(self, model: NativeModel, shape: ContextSizes) -> None:
        """Raises LoadError when memory does not suffice, and LibraryError when the library's sizes differ
        from the requested ones."""
        self.shape = shape
        self._call = model.library.call
        self._vocabulary = model.size
        self._devices = model.placement.list_devices()
        params = self._build_params(model.library)
        with model.library.capture_log() as log:
            self.pointer = self._call.llama_init_from_model(model.pointer, params)
        if not self.pointer:
            raise model.build_load_error(
                f"llama.cpp could not make room for {params.n_ctx} tokens in the KV cache: "
                f"{log.join_errors() or 'it gave no reason'}; lower the context length or the number of "
                "sequences."
            )
        self.adapters = AdapterCache(partial(NativeAdapter, model), self._use_adapter, shape.adapter_memory)
        """The model's adapters; decode computes with the active one."""
        self._require_sizes(model.library)
        self._memory = self._call.llama_get_memory(self.pointer)
        self._allocate(shape.rows)
        self._flag = ctypes.create_string_buffer(2)
        self._call.llama_set_abort_callback(
            self.pointer, ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p), ctypes.addressof(self._flag)
        )
        self._logits_address: int | None = None
        self._logits: NDArray[np.float32] = np.empty((0, 0), dtype=np.float32)

    def _build_params(self, library: Library) -> ctypes.Structure:
        """Builds the library's parameters for a context of the requested sizes."""
        sizes = self.shape
        flash = FLASH_AUTO if self._devices else FLASH_ON
        params: ctypes.Structure = self._call.llama_context_default_params()
        values = {
            "n_ctx": sizes.cells if sizes.unified else sizes.cells * sizes.sequences,
            "n_batch": sizes.rows,
            "n_ubatch": sizes.micro_rows,
            "n_seq_max": sizes.sequences,
            "n_outputs_max": sizes.outputs or sizes.sequences,
            "n_threads": sizes.single_row_threads or sizes.threads,
            "n_threads_batch": sizes.threads,
            "flash_attn_type": flash if sizes.flash else FLASH_OFF,
            "type_k": KV_TYPES[sizes.kv_type],
            "type_v": KV_TYPES[sizes.kv_type],
            "kv_unified": sizes.unified,
        }
        for name, value in values.items():
            setattr(params, name, value)
        return params

    def _require_sizes(self, library: Library) -> None:
        """Compares the library's own sizes of the context with the requested ones, as the last proof of the
        struct layout. If they differ, closes the context and raises LibraryError."""
        sizes = self.shape
        actual = {
            name: getattr(self._call, name)(self.pointer)
            for name in (
                "llama_n_batch",
                "llama_n_ubatch",
                "llama_n_seq_max",
                "llama_n_threads",
                "llama_n_ctx_seq",
            )
        }
        batch, micro, sequences, threads, cells = actual.values()
        requested_threads = sizes.single_row_threads or sizes.threads
        requested = (sizes.rows, min(sizes.micro_rows, sizes.rows), sizes.sequences, requested_threads)
        if (batch, micro, sequences, threads) != requested or cells < sizes.cells:
            self.close()
            raise LibraryError(
                f"{library.path} misread its parameters ({actual}); "
                "install the xllamacpp version that Antiphon's requirements name."
            )

    def _allocate(self, rows: int) -> None:
        """Allocates the batch arrays; `self._batch` points into them as long as this object lives."""
        self.tokens = np.zeros(rows, dtype=np.int32)
        self.positions = np.zeros(rows, dtype=np.int32)
        self.sequences = np.zeros(rows, dtype=np.int32)
        self.outputs = np.zeros(rows, dtype=np.int8)
        self._medium: tuple[NDArray[np.float32], NDArray[np.int32], bool] | None = None
        """The embeddings and positions of the next batch, and whether a cell sees only the cells before it;
        None for a batch of tokens."""
        self._counts = np.ones(rows, dtype=np.int32)
        step = self.sequences.itemsize
        self._pointers = self.sequences.ctypes.data + step * np.arange(rows, dtype=np.uintp)
        self._batch = NativeBatch(
            token=self.tokens.ctypes.data,
            embd=None,
            pos=self.positions.ctypes.data,
            n_seq_id=self._counts.ctypes.data,
            seq_id=self._pointers.ctypes.data,
            logits=self.outputs.ctypes.data,
        )

    def close(self) -> None:
        """Frees the cache, and the adapters."""
        if self.pointer:
            self.adapters.close()
            self._call.llama_free(self.pointer)
            self.pointer = None

    def set_one_row_each(self, tokens: list[int], positions: list[int], sequences: list[int]) -> None:
        """Fills the first rows of the next batch with one token of each sequence. Every row gives logits."""
        end = len(tokens)
        if end == 1:  # a tenth of the time
            self.tokens[0], self.positions[0], self.sequences[0] = tokens[0], positions[0], sequences[0]
            self.outputs[0] = 1
            return
        self.tokens[:end] = tokens
        self.positions[:end] = positions
        self.sequences[:end] = sequences
        self.outputs[:end] = 1

    def set_rows(
        self,
        row: int,
        tokens: "list[int] | array[int]",
        position: int,
        sequence: int,
        last_has_logits: bool,
        all_have_logits: bool = False,
    ) -> None:
        """Fills consecutive rows with tokens of one sequence. `last_has_logits`: whether the last row gives
        logits. `all_have_logits`: whether all rows give logits."""
        end = row + len(tokens)
        self.tokens[row:end] = tokens
        self.positions[row:end] = np.arange(position, position + len(tokens))
        self.sequences[row:end] = sequence
        self.outputs[row:end] = all_have_logits
        self.outputs[end - 1] = last_has_logits or all_have_logits

    def set_medium(
        self, part: EncodedPart, start: int, stop: int, position: int, sequence: int, last_has_logits: bool
    ) -> None:
        """Fills the next batch with the embeddings of some cells of a medium. `start` and `stop`: which cells
        of the part. `position`: of the part's first cell. `last_has_logits`: whether the last row gives
        logits."""
        count = stop - start
        self.sequences[:count] = sequence
        self.outputs[:count] = 0
        self.outputs[count - 1] = last_has_logits
        if part.offsets is None:
            positions = np.arange(position + start, position + stop, dtype=np.int32)
        else:
            places = part.offsets[:, start:stop] + np.int32(position)
            positions = np.concatenate([places, np.zeros((1, count), np.int32)])  # the fourth is unused
        self._medium = part.rows[start:stop], positions, part.is_causal

    def decode(self, rows: int) -> int:
        """Computes the first `rows` rows of the arrays, or the medium that was set. Returns a `DecodeStatus`
        or a negative number. Other threads can run Python meanwhile. Raises DeviceLost if a device fails,
        because the device can work again only in a new process, if at all."""
        if self._medium is not None:
            status = self._decode_medium(*self._medium)
        else:
            self._batch.n_tokens = rows
            status = int(self._call.llama_decode(self.pointer, self._batch))
        if self._devices:
            self._await_devices(status)
        return status

    def _decode_medium(
        self, embeddings: NDArray[np.float32], positions: NDArray[np.int32], is_causal: bool
    ) -> int:
        """Computes the medium that was set. Cells that see each other need another kind of attention, which
        the library sets for the whole context."""
        self._medium = None
        batch = NativeBatch(
            n_tokens=len(embeddings),
            token=None,
            embd=embeddings.ctypes.data,
            pos=positions.ctypes.data,
            n_seq_id=self._counts.ctypes.data,
            seq_id=self._pointers.ctypes.data,
            logits=self.outputs.ctypes.data,
        )
        if is_causal:
            return int(self._call.llama_decode(self.pointer, batch))
        self._call.llama_set_causal_attn(self.pointer, False)
        try:
            return int(self._call.llama_decode(self.pointer, batch))
        finally:
            self._call.llama_set_causal_attn(self.pointer, True)

    def _await_devices(self, status: int) -> None:
        """Waits until the devices have computed a decode, so that its time is known. Raises DeviceLost."""
        if status < 0:
            names = ", ".join(device.device for device in self._devices)
            LOGGER.error("llama_decode failed with %d on %s, so the engine ends", status, names)
            raise DeviceLost(f"the device failed ({names}); the engine starts again")
        self._call.llama_synchronize(self.pointer)

    def read_logits(self, rows: int) -> NDArray[np.float32]:
        """The logits of the last decode's output rows, in their order. The result is a view, which the next
        decode overwrites."""
        address = self._call.llama_get_logits(self.pointer)
        if address != self._logits_address:
            max_rows = self.shape.outputs or self.shape.sequences
            logits_buffer = (ctypes.c_float * self._vocabulary * max_rows).from_address(address)
            self._logits = np.ctypeslib.as_array(logits_buffer)
            self._logits_address = address
        return self._logits[:rows]

    def remove(self, sequence: int, start: int = 0) -> None:
        """Frees the sequence's cells from this position on."""
        self._call.llama_memory_seq_rm(self._memory, sequence, start, -1)

    def copy(self, source: int, target: int, length: int) -> None:
        """Gives an empty sequence the first `length` positions of another.

        A pool shares the cells. Streams copy all cells with the next decode, so the cells after `length` are
        removed here.
        """
        if self.shape.unified:
            self._call.llama_memory_seq_cp(self._memory, source, target, 0, length)
            return
        self._call.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        self.remove(target, length)

    def clear(self) -> None:
        """Frees all cells and overwrites their keys and values."""
        self._call.llama_memory_clear(self._memory, True)

    def _use_adapter(self, adapter: LoadedAdapter | None) -> None:
        """Makes the next decode compute with this adapter, or with none. Raises EngineError if the library
        refuses."""
        if adapter is not None and not isinstance(adapter, NativeAdapter):
            raise TypeError(f"{adapter!r} is no adapter of the library")
        if set_adapter(self._call, self.pointer, adapter):
            raise EngineError("the engine's library refused to compute with the adapter")

    def abort(self) -> None:
        """Makes a running decode return ABORTED. Until `resume` is called, later decodes return ABORTED too.
        Any thread may call it."""
        self._flag[0] = ABORT_SET

    def resume(self) -> None:
        """Lets decodes run again after `abort`. Any thread may call it."""
        self._flag[0] = ABORT_CLEAR


POOLING = {1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST, 4: Pooling.RANK}
"""llama.cpp's numbers of the pooling types; model files use the same ones."""
UNPOOLED = 0

Vector = NDArray[np.float32]


class NativeEmbedder(NativeContext):
    """A llama_context that makes vectors of texts. Each text is a sequence of its own, and nothing of it is
    kept. A non-causal model needs a whole text in one pass through the network; a causal model takes a longer
    text in parts."""

    def __init__(self, model: NativeModel, shape: ContextSizes, pooling: Pooling) -> None:
        """`shape.rows` must hold a whole text unless the model is causal. Raises as `NativeContext` does."""
        self._pooling = pooling
        self._pooling_number = next(number for number, name in POOLING.items() if name is pooling)
        self._dimensions = model.count_classes() if pooling is Pooling.RANK else model.get_dimensions()
        super().__init__(model, shape)

    def _build_params(self, library: Library) -> ctypes.Structure:
        """Builds the library's parameters, with vectors and their pooling turned on."""
        params = super()._build_params(library)
        for name, value in {"embeddings": True, "pooling_type": self._pooling_number}.items():
            setattr(params, name, value)
        return params

    def _require_sizes(self, library: Library) -> None:
        """Compares the sizes, and also the pooling. Closes the context and raises LibraryError if they
        differ."""
        super()._require_sizes(library)
        pooling = self._call.llama_pooling_type(self.pointer)
        if pooling != self._pooling_number:
            self.close()
            raise LibraryError(
                f"{library.path} pools by {pooling} where {self._pooling_number} was asked for"
            )

    def compute(self, texts: Sequence["array[int]"]) -> tuple[int, Vector]:
        """Computes the pooled rows of the texts as (texts, dimensions), with a `DecodeStatus` or a negative
        number. The rows are meaningless unless the status is DONE.

        Several texts have at most `shape.rows` tokens together. With a causal model, a single text may have
        more.
        """
        if len(texts) == 1 and len(texts[0]) > self.shape.rows:
            return self._compute_in_parts(texts[0])
        row = 0
        for sequence_id, text in enumerate(texts):
            self.set_rows(row, text, 0, sequence_id, True, all_have_logits=True)
            row += len(text)
        vectors = np.zeros((len(texts), self._dimensions), np.float32)
        try:
            status = self.decode(row)
            if status == DecodeStatus.DONE:
                for sequence_id in range(len(texts)):
                    vectors[sequence_id] = self._read_pooled(sequence_id)
        finally:
            self._clear_cache(len(texts))
        return status, vectors

    def _compute_in_parts(self, text: "array[int]") -> tuple[int, Vector]:
        """Computes one long text in parts. Each part attends to the parts before it by the cache. The pooled
        rows of the parts are combined here."""
        vectors = np.zeros((1, self._dimensions), np.float32)
        status: int = DecodeStatus.DONE
        try:
            for start in range(0, len(text), self.shape.rows):
                part = text[start : start + self.shape.rows]
                self.set_rows(0, part, start, 0, True, all_have_logits=True)
                status = self.decode(len(part))
                if status != DecodeStatus.DONE:
                    break
                match self._pooling:
                    case Pooling.MEAN:
                        vectors[0] += self._read_pooled(0) * (len(part) / len(text))
                    case Pooling.LAST | Pooling.RANK:  # a causal reranker judges by its last token
                        vectors[0] = self._read_pooled(0)
                    case Pooling.CLS if start == 0:
                        vectors[0] = self._read_pooled(0)
        finally:
            self._clear_cache(1)
        return status, vectors

    def _read_pooled(self, sequence_id: int) -> Vector:
        """Returns the vector of a text, as a view of the library's memory. Raises EngineError if there is
        none."""
        address = self._call.llama_get_embeddings_seq(self.pointer, sequence_id)
        if not address:
            raise EngineError("the library gave no vector for a text that it computed")
        return np.ctypeslib.as_array((ctypes.c_float * self._dimensions).from_address(address))

    def _clear_cache(self, sequences: int) -> None:
        """Empties the cache, if the model has one."""
        if self._memory:
            for sequence_id in range(sequences):
                self.remove(sequence_id)
