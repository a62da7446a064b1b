"""The numbers that an encoder's config.json says, held against the tensors that lie beside it: what is
written has to be what llama.cpp can load."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.errors import ModelFileError
from antiphon.weights.convert.saved import Tensor

MATRICES = {
    "attn_q": ("hidden", "hidden"),
    "attn_k": ("hidden", "hidden"),
    "attn_v": ("hidden", "hidden"),
    "attn_output": ("hidden", "hidden"),
    "ffn_up": ("inner", "hidden"),
    "ffn_down": ("hidden", "inner"),
}
"""Of each layer, with a bias for each row."""

NORMS = ("attn_output_norm", "layer_output_norm")
"""Of each layer: a weight and a bias for each column."""

EMBEDDINGS = {"token_embd": "pieces", "position_embd": "positions", "token_types": "types"}
"""Matrices of which rows are looked up, and how many they have."""


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """How large an encoder is."""

    pieces: int
    positions: int
    types: int
    hidden: int
    inner: int
    layers: int
    heads: int
    epsilon: float

    def require(self, tensors: Mapping[str, Tensor], source: Path) -> None:
        """Raises ModelFileError unless these, by llama.cpp's names, are of this shape and none is missing."""
        for name, wanted in self._shapes():
            values = tensors.get(name)
            if values is None:
                raise ModelFileError(f"{source} holds no {name}, which an encoder of BERT's kind has")
            if values.shape != wanted:
                raise ModelFileError(
                    f"{source} holds {name} as {_times(values.shape)}; by its config.json it is "
                    f"{_times(wanted)}"
                )

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for name, rows in EMBEDDINGS.items():
            yield f"{name}.weight", (getattr(self, rows), self.hidden)
        norms = ["token_embd_norm"]
        for layer in range(self.layers):
            for name, (rows, columns) in MATRICES.items():
                yield f"blk.{layer}.{name}.weight", (getattr(self, rows), getattr(self, columns))
                yield f"blk.{layer}.{name}.bias", (getattr(self, rows),)
            norms += [f"blk.{layer}.{name}" for name in NORMS]
        for name in norms:
            yield f"{name}.weight", (self.hidden,)
            yield f"{name}.bias", (self.hidden,)


def read_shape(config: Mapping[str, Any], source: Path) -> EncoderShape:
    """What config.json says. Raises ModelFileError, which names what is no sound number."""
    said = EncoderShape(
        pieces=_whole(config, "vocab_size", source),
        positions=_whole(config, "max_position_embeddings", source),
        types=_whole(config, "type_vocab_size", source),
        hidden=_whole(config, "hidden_size", source),
        inner=_whole(config, "intermediate_size", source),
        layers=_whole(config, "num_hidden_layers", source),
        heads=_whole(config, "num_attention_heads", source),
        epsilon=_epsilon(config.get("layer_norm_eps", 1e-12), source),
    )
    if said.hidden % said.heads:
        raise ModelFileError(
            f"{source} has hidden_size = {said.hidden}, which its num_attention_heads = {said.heads} do not "
            "divide"
        )
    return said


def _whole(config: Mapping[str, Any], key: str, source: Path) -> int:
    value = config.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 31:
        return value
    raise ModelFileError(f"{source} has {key} = {_shown(value)}; it must be a whole number, at least 1")


def _epsilon(value: object, source: Path) -> float:
    if isinstance(value, int | float) and 0 < value < 1:  # NaN is neither
        return float(value)
    raise ModelFileError(f"{source} has layer_norm_eps = {_shown(value)}; it must lie between 0 and 1")


def _shown(value: object) -> str:
    return (
        repr(value)[:80] if not isinstance(value, int) or abs(value) < 1 << 64 else "a number of many digits"
    )


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
