"""Converts cantor to GGUF as F32, F16 or Q8_0, with tokenizer, chat template and sampling defaults, and back.

Needs numpy, gguf and safetensors, but no torch. Only the shipped Q8_0 file is committed; the reference
weights are its values widened to float32. F32 stores them exactly, and Q8_0 reproduces the shipped file.
`python -m models.cantor.convert --from weights/model.safetensors --out cantor.gguf` converts a checkpoint of
train.py; without --from it converts the shipped weights.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

from models.cantor import recipe
from models.cantor.vocabulary import read_pieces

HERE = Path(__file__).parent
SHIPPED = HERE.parents[1] / "src" / "antiphon" / "bundled" / "cantor.gguf"
BOS_ID, EOS_ID, TURN_END_ID = 1, 2, 4
KINDS = {
    "F32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "F16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "Q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def to_gguf_name(name: str) -> str:
    """Maps transformers' name of a tensor to llama.cpp's name."""
    if name.startswith("model.layers."):
        _, _, layer, rest = name.split(".", 3)
        return f"blk.{layer}.{LAYER_NAMES[rest.removesuffix('.weight')]}.weight"
    return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]


def interleave(weight: Array, heads: int) -> Array:
    """Reorders query or key rows: transformers rotates the two halves of a head, llama.cpp neighbouring
    rows."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def deinterleave(weight: Array, heads: int) -> Array:
    """Undos `interleave`."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def reorder_tensor(name: str, weight: Array) -> Array:
    """Returns a tensor's rows in llama.cpp's order."""
    heads = _count_interleaved_heads(name)
    return interleave(weight, heads) if heads else weight


def _count_interleaved_heads(name: str) -> int:
    """Returns the heads of a query or key matrix, whose rows llama.cpp interleaves, else 0."""
    if name.endswith("q_proj.weight"):
        return recipe.HEADS
    return recipe.KV_HEADS if name.endswith("k_proj.weight") else 0


def _list_tensor_names() -> list[str]:
    layers = [f"model.layers.{layer}.{part}.weight" for layer in range(recipe.LAYERS) for part in LAYER_NAMES]
    return ["model.embed_tokens.weight", *layers, "model.norm.weight"]


def reference_weights(path: Path = SHIPPED) -> dict[str, Array]:
    """Reads the shipped file's weights as float32, with transformers' names and row order."""
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    weights: dict[str, Array] = {}
    for name in _list_tensor_names():
        tensor = stored[to_gguf_name(name)]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        heads = _count_interleaved_heads(name)
        weights[name] = np.ascontiguousarray(deinterleave(values, heads) if heads else values)
    return weights


def write_gguf(path: Path, kind: str, weights: Mapping[str, Array] | None = None) -> None:
    """Writes cantor to `path` in a format of KINDS; norms stay float32."""
    tensor_type, file_type = KINDS[kind]
    writer = gguf.GGUFWriter(str(path), "llama")
    _write_header(writer, file_type)
    _write_tokenizer(writer)
    for name, weight in sorted((reference_weights() if weights is None else weights).items()):
        values = np.ascontiguousarray(reorder_tensor(name, weight), dtype=np.float32)
        stored_type = tensor_type if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(
            to_gguf_name(name), gguf.quants.quantize(values, stored_type), raw_dtype=stored_type
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_header(writer: gguf.GGUFWriter, file_type: gguf.LlamaFileType) -> None:
    writer.add_name("cantor")
    writer.add_description("The demo model of Antiphon, trained from scratch; see its card")
    writer.add_license("apache-2.0")
    writer.add_languages(["en"])
    writer.add_file_type(file_type)
    writer.add_context_length(recipe.CONTEXT)
    writer.add_embedding_length(recipe.WIDTH)
    writer.add_block_count(recipe.LAYERS)
    writer.add_feed_forward_length(recipe.HIDDEN)
    writer.add_head_count(recipe.HEADS)
    writer.add_head_count_kv(recipe.KV_HEADS)
    writer.add_layer_norm_rms_eps(recipe.NORM_EPSILON)
    writer.add_rope_dimension_count(recipe.WIDTH // recipe.HEADS)
    writer.add_rope_freq_base(recipe.ROPE_BASE)
    writer.add_vocab_size(recipe.VOCABULARY)
    writer.add_float32(gguf.Keys.General.SAMPLING_TEMP, recipe.TEMPERATURE)
    writer.add_float32(gguf.Keys.General.SAMPLING_TOP_P, recipe.TOP_P)


def _write_tokenizer(writer: gguf.GGUFWriter) -> None:
    pieces = read_pieces(HERE / "tokenizer.model")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([piece.text for piece in pieces])
    writer.add_token_scores([piece.score for piece in pieces])
    writer.add_token_types([piece.type for piece in pieces])
    writer.add_bos_token_id(BOS_ID)
    writer.add_eos_token_id(EOS_ID)
    writer.add_eot_token_id(TURN_END_ID)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)
    writer.add_chat_template((HERE / "template.jinja").read_text(encoding="utf-8").rstrip("\n"))


def main() -> None:
    """Converts the weights that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--from", dest="source", type=Path, help="a checkpoint of train.py instead of the shipped weights"
    )
    parser.add_argument("--kind", choices=KINDS, default="Q8_0")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    weights = None if arguments.source is None else load_file(arguments.source)
    write_gguf(arguments.out, arguments.kind, weights)
    print(f"{arguments.out}: {arguments.out.stat().st_size} bytes, {arguments.kind}")


if __name__ == "__main__":
    main()
