"""Writes a LoRA adapter with random weights for a GGUF model, for tests and measurements.

It adapts every matrix of every layer. The same arguments give the same file, byte for byte.

    python benchmarks/make_adapter.py half.gguf adapter.gguf --rank 16
"""

import argparse
import sys
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon.weights.adapter_import import digest
from antiphon.weights.gguf import read_header

Matrices = dict[str, NDArray[np.float32]]

WEIGHT = 0.2
"""About the share of the adapter in a matrix's output, if the base model's weights keep activations near
one."""


def write_adapter(path: Path, model: Path, rank: int = 16, seed: int = 0, weight: float = WEIGHT) -> str:
    """Writes the file and returns its digest."""
    base = read_header(model)
    randomizer = np.random.default_rng(seed)
    tensors: Matrices = {}
    for name, shape in base.shapes.items():
        if len(shape) == 2 and name.startswith("blk."):
            inputs, outputs = shape
            scale = np.float32((weight / np.sqrt(inputs * rank)) ** 0.5)
            tensors[f"{name}.lora_a"] = scale * randomizer.standard_normal((rank, inputs), dtype=np.float32)
            tensors[f"{name}.lora_b"] = scale * randomizer.standard_normal((outputs, rank), dtype=np.float32)
    return write(path, base.architecture, float(rank), tensors)


def write(
    path: Path, architecture: str, alpha: float, tensors: Matrices, invocation: tuple[int, ...] = ()
) -> str:
    """Writes a GGUF adapter of these matrices, without a check. Returns its digest.

    `invocation`: the tokens after which the adapter acts, which makes it an activated LoRA.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
    if invocation:
        key = gguf.Keys.Adapter.ALORA_INVOCATION_TOKENS
        writer.add_key_value(
            key, list(invocation), gguf.GGUFValueType.ARRAY, sub_type=gguf.GGUFValueType.UINT32
        )
    for name, values in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return digest(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = write_adapter(args.path, args.model, args.rank, args.seed)
    print(f"{args.path}: rank {args.rank}, {args.path.stat().st_size / 1e6:.1f} MB, sha256 {found}")


if __name__ == "__main__":
    main()
