"""Sizes models that vLLM serves. It examines their folders and environments before a process starts."""

from pathlib import Path

from antiphon.engines.vllm.environment import require_environment, resolve_interpreter
from antiphon.engines.vllm.folder import DTYPE_BYTES, ModelFolder, read_folder
from antiphon.errors import SettingsError
from antiphon.settings.models import ModelSettings
from antiphon.settings.schema import change_model


def size_vllm_model(model: ModelSettings) -> ModelSettings:
    """Returns the model with absolute paths and its context length. Raises a StartupError."""
    interpreter = resolve_interpreter(model.interpreter or "")
    require_environment(model.name, interpreter)
    folder = read_folder(Path(model.path).expanduser().absolute())
    if model.context_length and model.context_length > folder.context_length:
        raise SettingsError(
            f"the context length {model.context_length} of {model.name} is more than the "
            f"{folder.context_length} that its weights support; leave it out or lower it"
        )
    return change_model(
        model,
        path=str(folder.path),
        interpreter=interpreter,
        context_length=model.context_length or folder.context_length,
    )


def estimate_vllm_memory(model: ModelSettings) -> int:
    """Returns the bytes of a sized model in one host: its weights and vLLM's KV cache."""
    folder = read_folder(Path(model.path))
    cells = model.cells or (model.context_length or 0) * model.sequences
    return folder.size + cells * compute_vllm_cell_bytes(folder, model.dtype)


def compute_vllm_cell_bytes(folder: ModelFolder, dtype: str) -> int:
    """Returns the bytes of one token in the KV cache; 0 if the folder does not define its size."""
    return (folder.values_per_token or 0) * DTYPE_BYTES[folder.dtype if dtype == "auto" else dtype]
