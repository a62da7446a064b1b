"""Broken set-ups, made from the real things: the wheel's library with some bytes changed, the demo model cut
short or with another header, interpreters that lack something.

The bytes are those of the locked x86-64 wheel; a new wheel that holds them more or less than once says so.
"""

import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from tests.support.model_files import CANTOR

ROOT = Path(__file__).parents[2]

LIBRARY = "libllama.so"

DEFAULT_CONTEXT = bytes.fromhex("00020000 00080000 00020000 01000000")
"""n_ctx, n_batch, n_ubatch and n_seq_max of llama.cpp's default context parameters."""

NO_INSTRUCTION = b"\x0f\x0b"
"""What no processor takes: it ends a process as an instruction that is missing does."""

SHOW_CODE = (
    "import ctypes, sys; function = getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2]); "
    "print(ctypes.string_at(ctypes.cast(function, ctypes.c_void_p).value, 48).hex())"
)


def wheel() -> Path:
    """The library that the wheel brought."""
    spec = find_spec("xllamacpp")
    assert spec and spec.submodule_search_locations
    (path,) = Path(spec.submodule_search_locations[0]).glob("xllamacpp*.so")
    return path


def changed_library(place: Path, old: bytes, new: bytes) -> Path:
    """A copy of it with these bytes in place of those, which it holds once."""
    data = wheel().read_bytes()
    at = data.find(old)
    assert len(old) == len(new) and at >= 0 and data.find(old, at + 1) < 0
    path = place / LIBRARY
    shutil.copyfile(wheel(), path)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(new)
    return path


def other_abi(place: Path) -> Path:
    """Its default context has another size: the structs are not the known ones."""
    return changed_library(place, DEFAULT_CONTEXT, b"\x01" + DEFAULT_CONTEXT[1:])


def without_avx2(place: Path) -> Path:
    """It does not say AVX2 of itself."""
    return changed_library(place, b"\0AVX2\0", b"\0AVX0\0")


def without_gomp(place: Path) -> Path:
    """It needs an OpenMP library that is not on this machine."""
    return changed_library(place, b"\0libgomp.so.1\0", b"\0libgomp.so.9\0")


def dying(place: Path) -> Path:
    """Its first call is an instruction that the processor does not know."""
    command = [sys.executable, "-c", SHOW_CODE, str(wheel()), "llama_backend_init"]
    code = bytes.fromhex(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return changed_library(place, code, NO_INSTRUCTION + code[2:])


def cut_model(place: Path) -> Path:
    """The demo model without its last weights."""
    path = place / "cut.gguf"
    path.write_bytes(CANTOR.read_bytes()[:-100_000])
    return path


def long_model(place: Path, context_length: int) -> Path:
    """The demo model, which says of itself that it was made for so many tokens."""
    data = CANTOR.read_bytes()
    key = b"llama.context_length" + (4).to_bytes(4, "little")
    assert data.count(key) == 1
    at = data.index(key) + len(key)
    path = place / "long.gguf"
    path.write_bytes(data[:at] + context_length.to_bytes(4, "little") + data[at + 4 :])
    return path


def script(path: Path, body: str) -> Path:
    """An executable."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def python_without(place: Path, *packages: str) -> Path:
    """An interpreter that has everything but these packages."""
    libraries = place / "libraries"
    libraries.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(packages):
            (libraries / entry.name).symlink_to(entry)
    bare = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    found = bare if bare.exists() else Path(str(shutil.which("python3")))
    return script(place / "python", f'PYTHONPATH="{libraries}:{ROOT / "src"}" exec "{found}" "$@"')
