"""LoRA adapters in the library: loaded beside a model, and switched on for a context between two decodes.

Not thread safe. Which adapter is on when, and which is kept in memory, is decided elsewhere.
"""

import ctypes
import math
import os
from pathlib import Path

from antiphon.engines.llama.libllama_model import NativeModel
from antiphon.errors import LoadError

ALPHA = b"adapter.lora.alpha"
LONGEST_NUMBER = 64
"""Bytes of a number as llama.cpp writes it."""


class NativeAdapter:
    """Owns a native adapter until `close`; to be closed before its model, and never while it is on."""

    def __init__(self, model: NativeModel, path: Path) -> None:
        """Raises LoadError with the library's reason."""
        self._call = model.library.call
        with model.library.log_captured() as log:
            self.pointer = self._call.llama_adapter_lora_init(model.pointer, os.fsencode(path))
        if not self.pointer:
            raise LoadError(
                f"llama.cpp refused the adapter {path.name}: {log.errors() or 'it gave no reason'}"
            )

        if self._call.llama_adapter_get_alora_n_invocation_tokens(self.pointer):
            self.close()
            raise LoadError(f"the adapter {path.name} is an activated LoRA, which is not served")
        if not 0 < (alpha := self._alpha()) < math.inf:
            self.close()
            raise LoadError(f"the adapter {path.name} has the alpha {alpha}; it must be a positive number")

    def _alpha(self) -> float:
        """What its matrices are multiplied with, times their rank; not a number where it says none."""
        buffer = ctypes.create_string_buffer(LONGEST_NUMBER)
        self._call.llama_adapter_meta_val_str(self.pointer, ALPHA, buffer, LONGEST_NUMBER)
        try:
            return float(buffer.value)
        except ValueError:
            return math.nan

    def close(self) -> None:
        """Frees its matrices."""
        if self.pointer:
            self._call.llama_adapter_lora_free(self.pointer)
            self.pointer = None


def switch(call: ctypes.CDLL, context: int, adapter: NativeAdapter | None, scale: float = 1.0) -> int:
    """Lets the context compute with this adapter, or with none, from the next decode on; 0 when it does."""
    if adapter is None:
        return int(call.llama_set_adapters_lora(context, None, 0, None))
    pointers = (ctypes.c_void_p * 1)(adapter.pointer)
    scales = (ctypes.c_float * 1)(scale)
    return int(call.llama_set_adapters_lora(context, pointers, 1, scales))
