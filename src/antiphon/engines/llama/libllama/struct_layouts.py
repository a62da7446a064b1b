"""Struct layouts of llama.cpp's C API: one table for each known build, and the check that finds the right
one.

llama.cpp changes its parameter structs without notice. A wrong layout corrupts memory without an error. So
nothing is passed by value before `recognise_layout` has compared the structs that the library's
default-params functions return with a table, field by field. This module opens no library.
"""

import ctypes
import platform

from antiphon.domain.values import Struct

PROBE_BYTES = 4096
"""Bytes of a buffer that is large enough for a params struct of any build. The library writes only the bytes
of its own struct."""

SENTINEL = 0xA5
"""The byte that fills the buffer before the call, where the calling convention allows it. It shows how many
bytes the library has written."""

CType = (
    type[ctypes.c_void_p]
    | type[ctypes.c_int32]
    | type[ctypes.c_uint32]
    | type[ctypes.c_size_t]
    | type[ctypes.c_float]
    | type[ctypes.c_bool]
)
StructField = tuple[str, CType, int | float | None]
"""The field's name, its C type, and the value that the library's default-params function gives it."""

POINTER = ctypes.c_void_p


class ParamsProbe(ctypes.Structure):
    """Takes a struct of unknown layout by value."""

    _fields_ = [("raw", ctypes.c_ubyte * PROBE_BYTES)]


def read_returned_struct(functions: ctypes.CDLL, name: str) -> bytes:
    """The bytes of the large struct that a function without arguments returns.

    On x86-64 the caller passes the result's address as a hidden first argument. Passing it explicitly also
    shows the struct's length. On other machines PROBE_BYTES are returned, and unrelated bytes follow the
    struct.
    """
    function = functions[name]  # Indexing makes a new function object, so its type is not shared.
    if platform.machine() not in ("x86_64", "AMD64"):
        function.restype = ParamsProbe
        return bytes(function().raw)
    buffer = ctypes.create_string_buffer(bytes([SENTINEL]) * PROBE_BYTES, PROBE_BYTES)
    function.restype, function.argtypes = None, [POINTER]
    function(ctypes.addressof(buffer))
    return buffer.raw.rstrip(bytes([SENTINEL]))


class NativeBatch(ctypes.Structure):
    """llama_batch: unchanged since 2023 in all builds below."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", POINTER),
        ("embd", POINTER),
        ("pos", POINTER),
        ("n_seq_id", POINTER),
        ("seq_id", POINTER),
        ("logits", POINTER),
    ]


class StructLayout(Struct, frozen=True):
    """The parameter structs of one build."""

    build: str
    model: type[ctypes.Structure]
    context: type[ctypes.Structure]
    model_fields: tuple[StructField, ...]
    context_fields: tuple[StructField, ...]


MODEL_FIELDS: tuple[StructField, ...] = (
    ("devices", POINTER, None),
    ("tensor_buft_overrides", POINTER, None),
    ("n_gpu_layers", ctypes.c_int32, -1),
    ("split_mode", ctypes.c_int32, 1),
    ("load_mode", ctypes.c_int32, -1),
    ("lazy_mode", ctypes.c_int32, 1),
    ("main_gpu", ctypes.c_int32, 0),
    ("tensor_split", POINTER, None),
    ("progress_callback", POINTER, None),
    ("progress_callback_user_data", POINTER, None),
    ("kv_overrides", POINTER, None),
    ("vocab_only", ctypes.c_bool, 0),
    ("check_tensors", ctypes.c_bool, 0),
    ("use_extra_bufts", ctypes.c_bool, 1),
    ("no_host", ctypes.c_bool, 0),
    ("no_alloc", ctypes.c_bool, 0),
    ("load_mtp", ctypes.c_bool, 0),
)

CONTEXT_HEAD: tuple[StructField, ...] = (
    ("n_ctx", ctypes.c_uint32, 512),
    ("n_batch", ctypes.c_uint32, 2048),
    ("n_ubatch", ctypes.c_uint32, 512),
    ("n_seq_max", ctypes.c_uint32, 1),
    ("n_rs_seq", ctypes.c_uint32, 0),
    ("n_outputs_max", ctypes.c_uint32, 0),
    ("n_outputs_max_per_seq", ctypes.c_uint32, 1),
    ("n_threads", ctypes.c_int32, 4),
    ("n_threads_batch", ctypes.c_int32, 4),
    ("ctx_type", ctypes.c_int32, 0),
    ("rope_scaling_type", ctypes.c_int32, -1),
    ("pooling_type", ctypes.c_int32, -1),
    ("attention_type", ctypes.c_int32, -1),
    ("flash_attn_type", ctypes.c_int32, -1),
    ("rope_freq_base", ctypes.c_float, 0.0),
    ("rope_freq_scale", ctypes.c_float, 0.0),
    ("yarn_ext_factor", ctypes.c_float, -1.0),
    ("yarn_attn_factor", ctypes.c_float, -1.0),
    ("yarn_beta_fast", ctypes.c_float, -1.0),
    ("yarn_beta_slow", ctypes.c_float, -1.0),
    ("yarn_orig_ctx", ctypes.c_uint32, 0),
    ("defrag_thold", ctypes.c_float, -1.0),
    ("cb_eval", POINTER, None),
    ("cb_eval_user_data", POINTER, None),
    ("type_k", ctypes.c_int32, 1),
    ("type_v", ctypes.c_int32, 1),
    ("abort_callback", POINTER, None),
    ("abort_callback_data", POINTER, None),
)

CONTEXT_TAIL: tuple[StructField, ...] = (
    ("embeddings", ctypes.c_bool, 0),
    ("offload_kqv", ctypes.c_bool, 1),
    ("no_perf", ctypes.c_bool, 1),
    ("op_offload", ctypes.c_bool, 1),
    ("swa_full", ctypes.c_bool, 1),
    ("kv_unified", ctypes.c_bool, 0),
    ("samplers", POINTER, None),
    ("n_samplers", ctypes.c_size_t, 0),
    ("ctx_other", POINTER, None),
)


def build_structure(name: str, fields: tuple[StructField, ...]) -> type[ctypes.Structure]:
    """A ctypes struct of these fields."""
    return type(name, (ctypes.Structure,), {"_fields_": [(field, kind) for field, kind, _ in fields]})


def build_layout(
    build: str, model: tuple[StructField, ...], context: tuple[StructField, ...]
) -> StructLayout:
    """Builds one row of the table."""
    return StructLayout(
        build,
        build_structure("ModelParams", model),
        build_structure("ContextParams", context),
        model,
        context,
    )


LAYOUTS: tuple[StructLayout, ...] = (
    # llama.cpp b11549, in xllamacpp 2026.10.11549. Before its flags, this build has a size for a cache of
    # experts.
    build_layout(
        "b11549", MODEL_FIELDS, (*CONTEXT_HEAD, ("moe_cache_size", ctypes.c_size_t, 0), *CONTEXT_TAIL)
    ),
    # llama.cpp as of 2026-09, in llama-cpp-python 0.3.36
    build_layout("2026-09", MODEL_FIELDS, (*CONTEXT_HEAD, *CONTEXT_TAIL)),
)


def find_difference(raw: bytes, kind: type[ctypes.Structure], fields: tuple[StructField, ...]) -> str | None:
    """Describes the first field of these bytes whose value is not its known default; None if all values are
    the defaults."""
    size = ctypes.sizeof(kind)
    if size < len(raw) < PROBE_BYTES:
        return f"its struct has {len(raw)} bytes, not {size}"
    struct = kind.from_buffer_copy(raw[:size].ljust(size, b"\0"))
    for name, _, expected in fields:
        value = getattr(struct, name)
        if value != expected:
            return f"{name} is {value}, not {expected}"
    return None


def recognise_layout(model: bytes, context: bytes, table: tuple[StructLayout, ...]) -> StructLayout | str:
    """Finds the layout whose defaults equal these raw structs. If there is none, describes how the newest
    known layout differs."""
    for layout in table:
        if not (
            find_difference(model, layout.model, layout.model_fields)
            or find_difference(context, layout.context, layout.context_fields)
        ):
            return layout
    newest = table[0]
    how = find_difference(model, newest.model, newest.model_fields)
    return how or find_difference(context, newest.context, newest.context_fields) or "it differs"
