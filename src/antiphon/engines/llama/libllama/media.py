"""A projector: the second GGUF file of a model, which turns pictures and recordings into rows of embeddings.

It is llama.cpp's libmtmd as typed Python calls. A library without it serves text alone. `lay_out` may be
called from several threads, `encode` from one thread at a time.

The library ends the process if a file or a medium breaks one of its many assertions. So a projector is
tried at load, in the engine host, and callers' files never come here: only pixels and samples.
"""

import ctypes
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.media import LONGEST_SIDE, Medium, MediumShape, build_picture, build_recording
from antiphon.domain.messages import MediaKind
from antiphon.domain.values import Struct
from antiphon.engines.base import MEDIUM_CELL, MediaFacts, MediumLayout, MediumSpan
from antiphon.engines.llama.libllama.library import BOOL, I32, SIZE, STR, GgufParams, Library, P
from antiphon.engines.llama.libllama.model import NativeModel
from antiphon.engines.llama.libllama.struct_layouts import (
    StructField,
    build_structure,
    find_difference,
    read_returned_struct,
)
from antiphon.errors import EngineError, InvalidValue, LibraryError, LoadError

U32 = ctypes.c_uint32


class DecoderPosition(ctypes.Structure):
    """mtmd_decoder_pos: where one cell of a picture is."""

    _fields_ = [("t", U32), ("x", U32), ("y", U32), ("z", U32)]


class InputPart(ctypes.Structure):
    """mtmd_input_part: a text or a bitmap."""

    _fields_ = [("text", P), ("bitmap", P)]


MEDIA_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "llama_model_n_embd_inp": (I32, [P]),
    "llama_set_causal_attn": (None, [P, BOOL]),
    "mtmd_log_set": (None, [P, P]),
    "mtmd_default_marker": (P, []),
    "mtmd_free": (None, [P]),
    "mtmd_support_vision": (BOOL, [P]),
    "mtmd_support_audio": (BOOL, [P]),
    "mtmd_get_audio_sample_rate": (ctypes.c_int, [P]),
    "mtmd_decode_use_mrope": (BOOL, [P]),
    "mtmd_decode_use_non_causal": (BOOL, [P, P]),
    "mtmd_bitmap_init": (P, [U32, U32, P]),
    "mtmd_bitmap_init_from_audio": (P, [SIZE, P]),
    "mtmd_bitmap_free": (None, [P]),
    "mtmd_input_chunks_init": (P, []),
    "mtmd_input_chunks_size": (SIZE, [P]),
    "mtmd_input_chunks_get": (P, [P, SIZE]),
    "mtmd_input_chunks_free": (None, [P]),
    "mtmd_input_chunk_get_type": (ctypes.c_int, [P]),
    "mtmd_input_chunk_get_n_tokens": (SIZE, [P]),
    "mtmd_input_chunk_get_n_pos": (I32, [P]),
    "mtmd_input_chunk_get_tokens_text": (ctypes.POINTER(I32), [P, ctypes.POINTER(SIZE)]),
    "mtmd_input_chunk_get_tokens_image": (P, [P]),
    "mtmd_image_tokens_get_decoder_pos": (DecoderPosition, [P, I32, SIZE]),
    "mtmd_tokenize_from_parts": (I32, [P, P, P, SIZE, BOOL]),
    "mtmd_encode_chunk": (I32, [P, P]),
    "mtmd_get_output_embd": (P, [P]),
}
"""Result and argument types of the functions, except those that take the parameter struct."""

DEFAULT_PARAMS, INIT = "mtmd_context_params_default", "mtmd_init_from_file"

MEDIA_FIELDS: tuple[StructField, ...] = (
    ("use_gpu", ctypes.c_bool, 1),
    ("device", P, None),
    ("print_timings", ctypes.c_bool, 1),
    ("n_threads", ctypes.c_int32, 4),
    ("image_marker", P, None),
    ("media_marker", P, None),
    ("flash_attn_type", ctypes.c_int32, -1),
    ("warmup", ctypes.c_bool, 1),
    ("image_min_tokens", ctypes.c_int32, -1),
    ("image_max_tokens", ctypes.c_int32, -1),
    ("cb_eval", P, None),
    ("cb_eval_user_data", P, None),
    ("batch_max_tokens", ctypes.c_int32, 1024),
    ("progress_callback", P, None),
    ("progress_callback_user_data", P, None),
)
"""mtmd_context_params of both builds in `struct_layouts`. The default of `media_marker` is the address of
the library's marker."""

TEXT_CHUNK = 0
"""mtmd_input_chunk_type of text."""

UNSERVED = ("hunyuanvl", "deepseek4v")
"""Projector types whose cells depend on what is before them in the prompt."""

TYPE_KEYS = (b"clip.projector_type", b"clip.vision.projector_type", b"clip.audio.projector_type")

TEST_SHAPES = ((448, 448), (1920, 1080), (2048, 2048), (LONGEST_SIDE, 41), (41, LONGEST_SIDE))
"""Width and height of pictures whose cells are counted at load. If the cells of a picture see each other, no
other picture may have a part with more."""


SHORTEST_PART = 10
"""How many of the shortest recordings make a second. A recording of one sample ends the process."""


class EncodedPart(Struct, frozen=True):
    """One part of a medium, as rows of embeddings."""

    rows: NDArray[np.float32]
    """The embedding of each cell."""
    offsets: NDArray[np.int32] | None
    """With M-RoPE, the three coordinates of each cell, counted from the part's first position, as a row of
    cells for each coordinate. None: each cell has one position, one after the other."""
    positions: int
    """How many positions the part takes."""
    is_causal: bool
    """Whether a cell sees only the cells before it. If not, one decode must compute all cells, and nothing
    else."""

    @property
    def cells(self) -> int:
        return len(self.rows)


def open_media_functions(library: Library) -> type[ctypes.Structure]:
    """Declares the functions of libmtmd. Returns the type of its parameters, which is proved. Raises
    LibraryError if the library lacks libmtmd, or has another interface."""
    call = library.call
    missing = [name for name in (*MEDIA_FUNCTIONS, DEFAULT_PARAMS, INIT) if not hasattr(call, name)]
    if missing:
        raise LibraryError(
            f"{library.path} takes no pictures and recordings: it lacks {missing[0]}; leave mmproj out, or "
            "install the xllamacpp version that Antiphon's requirements name."
        )
    for name, (result, arguments) in MEDIA_FUNCTIONS.items():
        function = getattr(call, name)
        function.restype, function.argtypes = result, arguments
    marker = call.mtmd_default_marker()
    fields = tuple(
        (name, kind, marker if name == "media_marker" else value) for name, kind, value in MEDIA_FIELDS
    )
    params_type = build_structure("MediaParams", MEDIA_FIELDS)
    difference = find_difference(read_returned_struct(call, DEFAULT_PARAMS), params_type, fields)
    if difference:
        raise LibraryError(
            f"{library.path} takes pictures by another binary interface than the known one ({difference}); "
            "install the xllamacpp version that Antiphon's requirements name."
        )
    call.mtmd_context_params_default.restype = params_type
    call.mtmd_init_from_file.restype = P
    call.mtmd_init_from_file.argtypes = [STR, P, params_type]
    return params_type


class NativeProjector:
    """A loaded projector. It owns the native object until `close`; close it before its model."""

    def __init__(
        self, model: NativeModel, path: Path, threads: int, most_tokens: int, fewest_tokens: int | None
    ) -> None:
        """`most_tokens` and `fewest_tokens`: of one picture, for projectors that choose by its size. Raises
        LoadError with the library's reason, or LibraryError."""
        self.path = path
        self._model = model
        self._call = call = model.library.call
        open_media_functions(model.library)
        require_served(model.library, path)
        params = call.mtmd_context_params_default()
        params.use_gpu = bool(model.placement.gpu_layer_count)
        params.print_timings = params.warmup = False
        params.n_threads, params.image_max_tokens = threads, most_tokens
        if fewest_tokens is not None:
            params.image_min_tokens = fewest_tokens
        with model.library.capture_log(call.mtmd_log_set) as log:
            self.pointer = call.mtmd_init_from_file(os.fsencode(path), model.pointer, params)
        if not self.pointer:
            raise LoadError(
                f"llama.cpp refused the projector {path.name} of {model.name}: "
                f"{log.join_errors() or 'it gave no reason'}."
            )
        kinds = [MediaKind.IMAGE] if call.mtmd_support_vision(self.pointer) else []
        has_audio = call.mtmd_support_audio(self.pointer)
        kinds += [MediaKind.AUDIO] if has_audio else []
        self.facts = MediaFacts(
            tuple(kinds), call.mtmd_get_audio_sample_rate(self.pointer) if has_audio else 0
        )
        self.has_coordinates = bool(call.mtmd_decode_use_mrope(self.pointer))
        """Whether a cell of a picture has several coordinates (M-RoPE), so that a picture has fewer positions
        than cells."""
        self._width = int(call.llama_model_n_embd_inp(model.pointer))
        self.most_cells = 0
        """The most cells of one part of a picture."""
        self.is_causal = True
        """Whether the cells of all pictures see only the cells before them."""

    def close(self) -> None:
        """Frees the projector."""
        if self.pointer:
            self._call.mtmd_free(self.pointer)
            self.pointer = None

    def test(self) -> None:
        """Encodes a picture, or one second of sound, and measures the cells of several shapes of pictures.
        Raises LoadError. The library may end the process."""
        if MediaKind.IMAGE in self.facts.kinds:
            picture = build_picture(96, 64, bytes(range(256)) * (96 * 64 * 3 // 256))
            parts = self._test(picture)
            self.is_causal = all(part.is_causal for part in parts)
            layouts = [
                self.lay_out(MediumShape(MediaKind.IMAGE, width, height)) for width, height in TEST_SHAPES
            ]
            self.most_cells = max(span.cells for layout in layouts for span in layout.spans)
        if MediaKind.AUDIO in self.facts.kinds:
            samples = np.sin(np.arange(self.facts.sample_rate) / 10).astype("<f4")
            parts = self._test(build_recording(samples.tobytes()))
            self.most_cells = max(self.most_cells, *(part.cells for part in parts))

    def _test(self, medium: Medium) -> tuple[EncodedPart, ...]:
        """Encodes a medium. Raises LoadError if that fails."""
        try:
            return tuple(part for part, _ in self.encode(medium))
        except (InvalidValue, EngineError) as problem:
            raise LoadError(f"the projector {self.path.name} fails at a test: {problem.message}") from None

    def lay_out(self, shape: MediumShape) -> MediumLayout:
        """Tells the cells of a medium of this shape, and the tokens around them. Raises InvalidValue if the
        library refuses the shape."""
        ids: list[int] = []
        spans: list[MediumSpan] = []
        with self._cut(shape, None) as chunks:
            for chunk in chunks:
                cells = int(self._call.mtmd_input_chunk_get_n_tokens(chunk))
                if self._call.mtmd_input_chunk_get_type(chunk) != TEXT_CHUNK:
                    spans.append(MediumSpan(len(ids), cells, shape.kind, part=len(spans)))
                    ids += [MEDIUM_CELL] * cells
                    continue
                count = SIZE()
                tokens = self._call.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
                ids += tokens[: count.value]
        if self.most_cells and any(span.cells > self.most_cells for span in spans) and not self.is_causal:
            raise InvalidValue("the model cannot take an image with these sides", param="messages")
        words = [token for token in ids if token != MEDIUM_CELL]
        if not spans or (words and min(words) < 0):
            raise InvalidValue("the model lacks a token that its projector needs", param="messages")
        return MediumLayout(tuple(ids), tuple(spans))

    def encode(self, medium: Medium) -> Generator[tuple[EncodedPart, int], None, None]:
        """Computes the embeddings of a medium. Yields each part, and how many follow. A part takes
        milliseconds to seconds. Between two parts, other media may be encoded. Raises EngineError if the
        library fails, or gives numbers that are not finite."""
        with self._cut(medium.shape, medium.data) as chunks:
            parts = [chunk for chunk in chunks if self._call.mtmd_input_chunk_get_type(chunk) != TEXT_CHUNK]
            for number, chunk in enumerate(parts, 1):
                yield self._encode_chunk(chunk), len(parts) - number

    def _encode_chunk(self, chunk: int) -> EncodedPart:
        """Computes the embeddings of one part of a medium."""
        call, cells = self._call, int(self._call.mtmd_input_chunk_get_n_tokens(chunk))
        if call.mtmd_encode_chunk(self.pointer, chunk):
            raise EngineError("the library could not encode a picture or recording")
        address = call.mtmd_get_output_embd(self.pointer)
        rows = np.ctypeslib.as_array((ctypes.c_float * self._width * cells).from_address(address)).copy()
        if not np.isfinite(rows).all():
            raise EngineError("the model's projector gave no finite numbers for a picture or recording")
        is_causal = not call.mtmd_decode_use_non_causal(self.pointer, chunk)
        positions = int(call.mtmd_input_chunk_get_n_pos(chunk))
        return EncodedPart(rows, self._read_offsets(chunk, cells), positions, is_causal)

    def _read_offsets(self, chunk: int, cells: int) -> NDArray[np.int32] | None:
        """Reads the coordinates of a part's cells."""
        if not self.has_coordinates:
            return None
        image = self._call.mtmd_input_chunk_get_tokens_image(chunk)
        if not image:  # a recording, whose cells follow each other in time
            steps = np.arange(cells, dtype=np.int32)
            return np.stack([steps, steps, steps])
        offsets = np.empty((3, cells), np.int32)
        for cell in range(cells):
            place = self._call.mtmd_image_tokens_get_decoder_pos(image, 0, cell)
            offsets[:, cell] = place.t, place.y, place.x
        return offsets

    @contextmanager
    def _cut(self, shape: MediumShape, data: bytes | None) -> Iterator[list[int]]:
        """Cuts a medium into the chunks of a prompt. Without `data` the chunks have sizes only."""
        call = self._call
        if shape.kind is MediaKind.AUDIO and shape.samples * SHORTEST_PART < self.facts.sample_rate:
            raise InvalidValue(
                "a recording of less than a tenth of a second cannot be heard; send a longer one",
                param="messages",
            )
        if shape.kind is MediaKind.IMAGE:
            bitmap = call.mtmd_bitmap_init(shape.width, shape.height, data)
        else:
            bitmap = call.mtmd_bitmap_init_from_audio(shape.samples, data)
        chunks = call.mtmd_input_chunks_init()
        try:
            part = InputPart(None, bitmap)
            parts = (ctypes.c_void_p * 1)(ctypes.addressof(part))
            if call.mtmd_tokenize_from_parts(self.pointer, chunks, parts, 1, False):
                raise InvalidValue(f"the model cannot take this {shape.kind}", param="messages")
            count = call.mtmd_input_chunks_size(chunks)
            yield [call.mtmd_input_chunks_get(chunks, index) for index in range(count)]
        finally:
            call.mtmd_input_chunks_free(chunks)
            call.mtmd_bitmap_free(bitmap)


def require_served(library: Library, path: Path) -> None:
    """Raises LoadError for a projector of a type that is not served, or for a file that is no projector."""
    call = library.call
    file = call.gguf_init_from_file(os.fsencode(path), GgufParams(no_alloc=True, context=None))
    if not file:
        raise LoadError(f"the projector {path.name} is no GGUF file, or is damaged.")
    try:
        keys = [key for name in TYPE_KEYS if (key := call.gguf_find_key(file, name)) >= 0]
        types = [(call.gguf_get_val_str(file, key) or b"").decode("utf-8", "replace") for key in keys]
    finally:
        call.gguf_free(file)
    if not types:
        raise LoadError(f"{path.name} is no projector: it names no projector type.")
    if refused := [name for name in types if name in UNSERVED]:
        raise LoadError(f"the projector {path.name} is of the type {refused[0]}, which is not served yet.")
