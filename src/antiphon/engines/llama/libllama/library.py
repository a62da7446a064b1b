"""llama.cpp's C API as typed Python calls: finds a library, opens it, and proves that its interface is known.

If a setting names a path, only that path is tried. Without a setting, the library of an installed
llama-cpp-python is tried first, since it was built for this machine, then the one of the xllamacpp wheel. No
package is imported. An unusable library is skipped with a warning. If no library is usable, the error of the
library that was tried last is raised.
"""

import ctypes
import logging
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from antiphon.domain.values import Struct
from antiphon.engines.llama.libllama.struct_layouts import (
    LAYOUTS,
    NativeBatch,
    StructLayout,
    read_returned_struct,
    recognise_layout,
)
from antiphon.engines.llama.machine import prepare_environment
from antiphon.errors import LibraryError

P, I32, U32, I64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64
STR, BOOL, SIZE = ctypes.c_char_p, ctypes.c_bool, ctypes.c_size_t

LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
LOG_LEVEL_ERROR, LOG_LEVEL_CONTINUED = 4, 5
LOG_LINES = 4
"""The most error lines that a message repeats."""


class GgufParams(ctypes.Structure):
    """gguf_init_params: with `no_alloc` and no context only the header is read."""

    _fields_ = [("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p)]


class GgmlParams(ctypes.Structure):
    """ggml_init_params: with `no_alloc` tensors of the context get no data."""

    _fields_ = [
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    ]


FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "llama_backend_init": (None, []),
    "llama_log_set": (None, [P, P]),
    "llama_print_system_info": (STR, []),
    "llama_model_free": (None, [P]),
    "llama_model_get_vocab": (P, [P]),
    "llama_model_n_ctx_train": (I32, [P]),
    "llama_model_n_params": (ctypes.c_uint64, [P]),
    "llama_model_size": (ctypes.c_uint64, [P]),
    "llama_model_desc": (I32, [P, STR, SIZE]),
    "llama_model_meta_val_str": (I32, [P, STR, STR, SIZE]),
    "llama_model_chat_template": (STR, [P, STR]),
    "llama_model_has_encoder": (BOOL, [P]),
    "llama_model_has_decoder": (BOOL, [P]),
    "llama_model_is_recurrent": (BOOL, [P]),
    "llama_model_is_hybrid": (BOOL, [P]),
    "llama_model_is_diffusion": (BOOL, [P]),
    "llama_vocab_n_tokens": (I32, [P]),
    "llama_vocab_type": (ctypes.c_int, [P]),
    "llama_vocab_get_text": (STR, [P, I32]),
    "llama_vocab_get_attr": (ctypes.c_int, [P, I32]),
    "llama_vocab_is_eog": (BOOL, [P, I32]),
    "llama_vocab_bos": (I32, [P]),
    "llama_vocab_eos": (I32, [P]),
    "llama_vocab_get_add_bos": (BOOL, [P]),
    "llama_vocab_fim_pre": (I32, [P]),
    "llama_vocab_fim_suf": (I32, [P]),
    "llama_vocab_fim_mid": (I32, [P]),
    "llama_vocab_get_add_eos": (BOOL, [P]),
    "llama_vocab_get_add_sep": (BOOL, [P]),
    "llama_vocab_sep": (I32, [P]),
    "llama_tokenize": (I32, [P, STR, I32, P, I32, BOOL, BOOL]),
    "llama_token_to_piece": (I32, [P, I32, P, I32, I32, BOOL]),
    "llama_free": (None, [P]),
    "llama_n_ctx": (U32, [P]),
    "llama_n_ctx_seq": (U32, [P]),
    "llama_n_batch": (U32, [P]),
    "llama_n_ubatch": (U32, [P]),
    "llama_n_seq_max": (U32, [P]),
    "llama_n_threads": (I32, [P]),
    "llama_get_memory": (P, [P]),
    "llama_memory_clear": (None, [P, BOOL]),
    "llama_memory_seq_rm": (BOOL, [P, I32, I32, I32]),
    "llama_memory_seq_cp": (None, [P, I32, I32, I32, I32]),
    "llama_adapter_lora_init": (P, [P, STR]),
    "llama_adapter_lora_free": (None, [P]),
    "llama_adapter_get_alora_n_invocation_tokens": (ctypes.c_uint64, [P]),
    "llama_adapter_meta_val_str": (I32, [P, STR, STR, SIZE]),
    "llama_set_adapters_lora": (I32, [P, P, SIZE, P]),
    "llama_set_abort_callback": (None, [P, P, P]),
    "llama_decode": (I32, [P, NativeBatch]),
    "llama_get_logits": (P, [P]),
    "llama_get_embeddings_seq": (P, [P, I32]),
    "llama_pooling_type": (ctypes.c_int, [P]),
    "llama_model_n_embd_out": (I32, [P]),
    "llama_model_n_cls_out": (U32, [P]),
    "llama_max_devices": (SIZE, []),
    "llama_synchronize": (None, [P]),
    "ggml_backend_reg_count": (SIZE, []),
    "ggml_backend_reg_get": (P, [SIZE]),
    "ggml_backend_reg_name": (STR, [P]),
    "ggml_backend_dev_count": (SIZE, []),
    "ggml_backend_dev_get": (P, [SIZE]),
    "ggml_backend_dev_by_name": (P, [STR]),
    "ggml_backend_dev_name": (STR, [P]),
    "ggml_backend_dev_description": (STR, [P]),
    "ggml_backend_dev_type": (ctypes.c_int, [P]),
    "ggml_backend_dev_memory": (None, [P, P, P]),
    "ggml_backend_dev_supports_op": (ctypes.c_bool, [P, P]),
    "ggml_init": (P, [GgmlParams]),
    "ggml_new_tensor_1d": (P, [P, ctypes.c_int, I64]),
    "ggml_free": (None, [P]),
    "gguf_init_from_file": (P, [STR, GgufParams]),
    "gguf_free": (None, [P]),
    "gguf_find_key": (I64, [P, STR]),
    "gguf_get_kv_type": (ctypes.c_int, [P, I64]),
    "gguf_get_val_u32": (U32, [P, I64]),
    "gguf_get_val_str": (STR, [P, I64]),
    "gguf_get_arr_type": (ctypes.c_int, [P, I64]),
    "gguf_get_arr_n": (SIZE, [P, I64]),
    "gguf_get_arr_data": (P, [P, I64]),
    "gguf_get_n_tensors": (I64, [P]),
    "gguf_get_tensor_name": (STR, [P, I64]),
    "gguf_get_tensor_size": (SIZE, [P, I64]),
}
"""Result and argument types of every function that is called, except those that take parameter structs."""

STRUCT_FUNCTIONS = (
    "llama_model_default_params",
    "llama_context_default_params",
    "llama_model_load_from_file",
    "llama_init_from_model",
)

PACKAGES = {"libgomp": "libgomp1", "libstdc++": "libstdc++6", "libgcc_s": "libgcc-s1"}
"""The Debian package of each library that the wheel needs and does not include."""


class Library:
    """An opened library whose ABI was recognised."""

    def __init__(self, path: Path, functions: ctypes.CDLL, layout: StructLayout) -> None:
        self.path = path
        self.layout = layout
        self.call = functions
        self._log: LogCapture | None = None
        declare_functions(functions, layout)
        functions.llama_backend_init()
        self._silent_callback = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p)
        functions.llama_log_set(self._silent_callback, None)

    def describe_version(self) -> str:
        """The library's own version text, for people."""
        parts = [f"llama.cpp {self.layout.build}"]
        for name in ("llama_version", "ggml_commit"):
            if hasattr(self.call, name):
                function = getattr(self.call, name)
                function.restype = STR
                parts.append((function() or b"").decode("utf-8", "replace"))
        return " ".join(part for part in parts if part and part != "unknown")

    def list_cpu_features(self) -> tuple[str, ...]:
        """CPU features that the library was built to use and this machine has, by the library's names."""
        text = (self.call.llama_print_system_info() or b"").decode("utf-8", "replace")
        return tuple(re.findall(r"(\w+) = 1\b", text))

    @contextmanager
    def capture_log(self, *setters: Callable[[ctypes.c_void_p, None], object]) -> Iterator["LogCapture"]:
        """Collects the library's error lines while the `with` block runs. `setters`: further functions that
        set the log of a part of the library.

        At other times the log goes to a C function that does nothing (libc's abs): a Python callback would
        make the threads of a running decode wait for the interpreter.
        """
        capture = LogCapture()
        all_setters: list[Callable[[ctypes.c_void_p, None], object]] = [self.call.llama_log_set, *setters]
        for set_log in all_setters:
            set_log(ctypes.cast(capture.callback, ctypes.c_void_p), None)
        try:
            yield capture
        finally:
            for set_log in all_setters:
                set_log(self._silent_callback, None)


class LogCapture:
    """The last error lines that the library wrote."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self._is_error_line = False
        self.callback = LOG_CALLBACK(self._add_line)

    def _add_line(self, level: int, text: bytes, _: object) -> None:
        """Stores a line of the library's log if it is an error or continues one."""
        if level != LOG_LEVEL_CONTINUED:
            self._is_error_line = level == LOG_LEVEL_ERROR
        if self._is_error_line and text and text.strip():
            self._lines.append(text.decode("utf-8", "replace").strip())

    def join_errors(self) -> str:
        """Joins the lines, without the function names that llama.cpp puts before them."""
        lines = [re.sub(r"^[\w:~]+:\s+", "", line) for line in self._lines]
        return "; ".join(dict.fromkeys(lines))


def open_library(path: Path, layouts: tuple[StructLayout, ...] = LAYOUTS) -> Library:
    """Opens and checks one library. Raises LibraryError with the problem and its remedy."""
    if sys.platform == "win32":
        raise LibraryError("The llama.cpp wheel exports no C API on Windows; run Antiphon under WSL.")
    prepare_environment()
    if path.exists() and not path.is_file():  # to open a FIFO could wait forever
        raise LibraryError(f"Cannot load {path}: it is not a regular file.")
    try:
        functions = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryError(f"Cannot load {path}: {explain_load_error(str(error))}") from None
    missing = [name for name in (*FUNCTIONS, *STRUCT_FUNCTIONS) if not hasattr(functions, name)]
    if missing:
        raise LibraryError(
            f"{path} is not a llama.cpp library that Antiphon can use: it lacks {', '.join(missing[:3])}."
        )
    layout_match = recognise_layout(
        read_returned_struct(functions, "llama_model_default_params"),
        read_returned_struct(functions, "llama_context_default_params"),
        layouts,
    )
    if isinstance(layout_match, str):
        raise LibraryError(
            f"{path} is a build of llama.cpp with another binary interface than the known ones "
            f"({layout_match}); install the xllamacpp version that Antiphon's requirements name."
        )
    return Library(path, functions, layout_match)


def explain_load_error(error: str) -> str:
    """The loader's message, with the name of the Debian package that contains the missing library."""
    missing = re.match(r"(lib[\w+-]+?)\.so[.\d]*: cannot open shared object", error)
    package = PACKAGES.get(missing[1]) if missing else None
    return f"{error}; install the system package {package}." if package else f"{error}."


def declare_functions(functions: ctypes.CDLL, layout: StructLayout) -> None:
    """Gives every function its types."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
    functions.llama_model_default_params.restype = layout.model
    functions.llama_context_default_params.restype = layout.context
    functions.llama_model_load_from_file.restype = P
    functions.llama_model_load_from_file.argtypes = [STR, layout.model]
    functions.llama_init_from_model.restype = P
    functions.llama_init_from_model.argtypes = [P, layout.context]


log = logging.getLogger(__name__)

SUFFIXES = (".dylib", ".so") if sys.platform == "darwin" else (".so",)


class LibraryFile(Struct, frozen=True):
    """A file that may be a library, and the package or setting that names it."""

    path: Path
    origin: str
    """`llama-cpp-python 0.3.36`, or `the setting`, for people."""


def find_library(
    setting: str | None, candidates: Iterator[LibraryFile] | None = None
) -> tuple[Library, LibraryFile]:
    """Finds and opens the first usable library. Raises LibraryError if there is none."""
    if setting:
        library_file = LibraryFile(resolve_library_file(Path(setting)), "the library setting")
        return open_library(library_file.path), library_file
    refusal = LibraryError("No llama.cpp library is installed; `pip install xllamacpp` brings one.")
    for library_file in find_installed() if candidates is None else candidates:
        try:
            return open_library(library_file.path), library_file
        except LibraryError as error:
            log.warning("skipping the llama.cpp library of %s: %s", library_file.origin, error.message)
            refusal = error
    raise refusal


def resolve_library_file(path: Path) -> Path:
    """The library file of a setting: the file itself, or the libllama of a directory. Raises LibraryError."""
    if path.is_dir():
        for suffix in SUFFIXES:
            if (path / f"libllama{suffix}").is_file():
                return path / f"libllama{suffix}"
        raise LibraryError(f"There is no libllama{SUFFIXES[0]} in {path}; give the path of the library file.")
    if not path.is_file():
        raise LibraryError(
            f"There is no library at {path}; give the path of a llama.cpp library, or leave the setting out."
        )
    return path


def find_installed() -> Iterator[LibraryFile]:
    """Yields the installed libraries in the order of preference."""
    yield from list_libraries("llama_cpp", "llama-cpp-python", "lib/libllama")
    yield from list_libraries("xllamacpp", "xllamacpp", "xllamacpp*")


def list_libraries(package: str, distribution: str, pattern: str) -> Iterator[LibraryFile]:
    """The libraries of one package."""
    for folder in find_package_folders(package):
        for suffix in SUFFIXES:
            for path in sorted(folder.glob(pattern + suffix)):
                yield LibraryFile(path, f"{distribution} {get_installed_version(distribution)}")


def find_package_folders(package: str) -> list[Path]:
    """Returns the folders of an installed top-level package, without importing it."""
    spec = find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []


def get_installed_version(distribution: str) -> str:
    """The installed version of a distribution, or a question mark."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "?"
