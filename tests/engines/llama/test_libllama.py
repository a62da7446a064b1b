"""The library: found in the designed order, refused by name, never called with a layout that was not
recognised.
"""

import ctypes
import ctypes.util
import logging
import sys
from pathlib import Path

import pytest

from antiphon.engines.llama.libllama.library import (
    LibraryFile,
    explain_load_error,
    find_installed,
    find_library,
    list_libraries,
    open_library,
    resolve_library_file,
)
from antiphon.engines.llama.libllama.struct_layouts import (
    LAYOUTS,
    MODEL_FIELDS,
    StructLayout,
    build_layout,
    find_difference,
    read_returned_struct,
    recognise_layout,
)
from antiphon.errors import LibraryError


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The library of the installed wheel."""
    return [place.path for place in find_installed()][-1]


def defaults(known: StructLayout) -> tuple[bytes, bytes]:
    """What a library of this layout returns."""
    raw = []
    for kind, fields in ((known.model, known.model_fields), (known.context, known.context_fields)):
        struct = kind()
        for name, _, value in fields:
            setattr(struct, name, value)
        raw.append(bytes(struct))
    return raw[0], raw[1]


def test_the_installed_wheel_is_found_and_recognised(wheel):
    library, place = find_library(None, list_libraries("xllamacpp", "xllamacpp", "xllamacpp*"))
    assert library.path == wheel
    assert place.origin.startswith("xllamacpp 20")
    assert library.layout.build == "b11549"
    assert "llama.cpp b11549" in library.describe_version()
    assert library.list_cpu_features()


def test_the_wheel_is_not_imported_to_be_found(wheel):
    find_library(None)
    assert "xllamacpp" not in sys.modules


def test_each_known_layout_is_recognised_by_its_defaults():
    for known in LAYOUTS:
        assert recognise_layout(*defaults(known), LAYOUTS) == known


BOOLEANS = {"embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified"}


@pytest.mark.parametrize("known", LAYOUTS, ids=lambda known: known.build)
def test_any_other_default_is_not_recognised(known):
    model, context = defaults(known)
    for name, _, value in known.context_fields:
        struct = known.context.from_buffer_copy(context)
        setattr(struct, name, 77 if value is None else value + 1 if name not in BOOLEANS else not value)
        assert (
            recognise_layout(model, bytes(struct), (known,))
            == f"{name} is {getattr(struct, name)}, not {value}"
        )


def test_a_longer_struct_is_not_recognised():
    known = LAYOUTS[0]
    _, context = defaults(known)
    assert (
        find_difference(context + b"\0" * 8, known.context, known.context_fields)
        == "its struct has 176 bytes, not 168"
    )


def test_the_structs_real_length_is_seen(wheel):
    functions = ctypes.CDLL(str(wheel))
    raw = read_returned_struct(functions, "llama_context_default_params")
    assert len(raw) == ctypes.sizeof(LAYOUTS[0].context)


def test_an_unknown_build_is_refused_before_any_struct_is_passed(wheel):
    other = build_layout(
        "other", tuple(field for field in MODEL_FIELDS if field[0] != "lazy_mode"), LAYOUTS[1].context_fields
    )
    with pytest.raises(LibraryError, match=r"another binary interface .* \((its struct has|main_gpu is)"):
        open_library(wheel, (other,))


def test_what_is_no_llama_library_is_refused(tmp_path):
    text = tmp_path / "libllama.so"
    text.write_text("not a library")
    with pytest.raises(LibraryError, match=r"Cannot load .*libllama\.so"):
        find_library(str(text))
    libc = ctypes.util.find_library("m")
    assert libc
    with pytest.raises(LibraryError, match=r"not a llama\.cpp library"):
        open_library(Path(libc))


def test_an_explicit_path_is_the_only_place(tmp_path, wheel):
    with pytest.raises(LibraryError, match="There is no library at"):
        find_library(str(tmp_path / "absent.so"))
    with pytest.raises(LibraryError, match=r"no libllama\.(so|dylib) in"):
        find_library(str(tmp_path))
    library, place = find_library(str(wheel))
    assert (library.path, place.origin) == (wheel, "the library setting")
    (tmp_path / "libllama.so").symlink_to(wheel)
    assert resolve_library_file(tmp_path) == tmp_path / "libllama.so"


def test_an_unusable_installed_library_is_skipped_with_a_warning(tmp_path, wheel, caplog):
    broken = tmp_path / "libllama.so"
    broken.write_text("not a library")
    places = [LibraryFile(broken, "llama-cpp-python 0.0"), LibraryFile(wheel, "xllamacpp")]
    with caplog.at_level(logging.WARNING):
        library, place = find_library(None, iter(places))
    assert library.path == wheel and place.origin == "xllamacpp"
    (warning,) = caplog.messages
    assert "llama-cpp-python 0.0" in warning and "Cannot load" in warning


def test_when_nothing_is_usable_the_last_reason_is_given(tmp_path):
    with pytest.raises(LibraryError, match="pip install xllamacpp"):
        find_library(None, iter(()))
    broken = tmp_path / "libllama.so"
    broken.write_text("not a library")
    with pytest.raises(LibraryError, match="Cannot load"):
        find_library(None, iter([LibraryFile(broken, "x")]))


def test_a_missing_system_library_is_named_with_its_package():
    said = explain_load_error("libgomp.so.1: cannot open shared object file: No such file or directory")
    assert said.endswith("install the system package libgomp1.")
    assert explain_load_error("libodd.so.3: cannot open shared object file: No such").endswith("No such.")
