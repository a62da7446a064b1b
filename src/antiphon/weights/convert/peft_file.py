"""Writes a LoRA adapter as one safetensors file in PEFT's format, for models that vLLM serves. The
configuration is in the metadata.

`peft` reads and checks the options. The scale is multiplied into the B matrices, so the file needs no further
option.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from antiphon.errors import ModelFileError
from antiphon.weights.convert.peft import (
    CONFIG,
    PREFIX,
    WEIGHTS,
    LoraScaling,
    MatrixPair,
    read_config,
    read_pairs,
)
from antiphon.weights.convert.tensors import Tensor

ALPHA = "alpha"
"""The key of the original alpha in the metadata."""

EMBEDDINGS = ("embed_tokens", "lm_head")
"""Modules whose adapters are refused, because vLLM applies them in another way or not at all."""


def write_peft_file(source: Path, base: Path, target: Path) -> tuple[int, float]:
    """Writes the adapter in the folder `source`, for the weights in the folder `base`. Returns the largest
    rank and alpha. Raises ModelFileError, and OSError if `target` cannot be written."""
    from safetensors.numpy import save_file

    config = read_config(source / CONFIG)
    pairs = read_pairs(source / WEIGHTS)
    shapes = read_shapes(base)
    tensors: dict[str, Tensor] = {}
    for module, pair in pairs.items():
        a, b = _get_matrices(module, pair, shapes, (source, base))
        tensors[f"{PREFIX}{module}.lora_A.weight"] = np.ascontiguousarray(a)
        tensors[f"{PREFIX}{module}.lora_B.weight"] = multiply_scale(b, config, module, source)
    rank = max(pair.a.shape[0] for pair in pairs.values() if pair.a is not None)
    options = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,  # the scale is in B
        "target_modules": sorted({module.rpartition(".")[2] for module in pairs}),
        "bias": "none",
    }
    metadata = {CONFIG: json.dumps(options), ALPHA: repr(config.alpha)}
    save_file(tensors, target, metadata=metadata)
    return rank, config.alpha


def read_shapes(base: Path) -> dict[str, tuple[int, ...]]:
    """Reads the shapes of all weights in a folder. Raises ModelFileError."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(base.glob("*.safetensors")):
        try:
            with safe_open(path, "numpy") as file:
                names = list(file.keys())
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in names}
        except (SafetensorError, OSError) as problem:
            raise ModelFileError(f"{path} cannot be read: {problem}") from None
    return shapes


def read_peft_file(path: Path) -> tuple[int, float]:
    """Returns the largest rank and alpha from a file of `write_peft_file`. Raises ModelFileError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata()
        return int(json.loads(metadata[CONFIG])["r"]), float(metadata[ALPHA])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as problem:
        raise ModelFileError(f"{path} cannot be read: {problem}") from None


def multiply_scale(b: Tensor, config: LoraScaling, module: str, source: Path) -> Tensor:
    """Multiplies PEFT's scale into a B matrix. Raises ModelFileError."""
    rank = b.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = b * np.float32(config.compute_factor(module, rank) * config.alpha / rank)
    if not np.isfinite(scaled).all():
        raise ModelFileError(f"{source} scales {module} beyond the range of float32")
    return np.ascontiguousarray(scaled)


def _get_matrices(
    module: str, pair: MatrixPair, shapes: Mapping[str, tuple[int, ...]], paths: tuple[Path, Path]
) -> tuple[Tensor, Tensor]:
    """Returns the two matrices of a module. Raises ModelFileError if they do not fit the module's weight.
    `paths`: the adapter's and its base's, for errors."""
    source, base = paths
    if pair.a is None or pair.b is None:
        raise ModelFileError(f"{source} has only one of the two matrices of {module}")
    if module.rpartition(".")[2] in EMBEDDINGS:
        raise ModelFileError(
            f"{source} adapts {module}: adapters of embeddings are not supported; leave the embeddings out "
            "of target_modules, or merge the adapter into its base model"
        )
    shape = shapes.get(f"{module}.weight", ())
    if len(shape) != 2:
        raise ModelFileError(f"{source} adapts {module[:120]}, which {base.name} does not have")
    if (pair.b.shape[0], pair.a.shape[1]) != shape or pair.a.shape[0] != pair.b.shape[1]:
        raise ModelFileError(
            f"{source} adapts {module} with {pair.b.shape[0]}x{pair.b.shape[1]} times {pair.a.shape[0]}x"
            f"{pair.a.shape[1]}, but in {base.name} it is {shape[0]}x{shape[1]}; it was made for another "
            "model"
        )
    return pair.a, pair.b
