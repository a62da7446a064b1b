"""To GGUF as F32, F16 or Q8_0, with tokenizer, chat template and sampling defaults; and back to weights.

Needs numpy, gguf and safetensors, no torch. The one committed file is the shipped one, in Q8_0; the reference
weights are its values widened to float32. F32 holds them exactly, Q8_0 gives the shipped file again.
Command: `python -m models.cantor.convert --from weights/model.safetensors --out cantor.gguf` for a checkpoint
of train.py; without --from the shipped weights are converted; in Python: `write_gguf(path, kind)`.
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
BOS, EOS, END = 1, 2, 4
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


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor that transformers calls `name`."""
    if name.startswith("model.layers."):
        _, _, layer, rest = name.split(".", 3)
        return f"blk.{layer}.{LAYER_NAMES[rest.removesuffix('.weight')]}.weight"
    return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]


def interleave(weight: Array, heads: int) -> Array:
    """Reorder query or key rows: transformers turns halves of a head, llama.cpp neighbours."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def separate(weight: Array, heads: int) -> Array:
    """Undo `interleave`."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def arranged(name: str, weight: Array) -> Array:
    """A tensor's values in llama.cpp's order."""
    heads = _turned(name)
    return interleave(weight, heads) if heads else weight


def _turned(name: str) -> int:
    """How many heads a tensor's rows are turned for; none for most tensors."""
    if name.endswith("q_proj.weight"):
        return recipe.HEADS
    return recipe.KV_HEADS if name.endswith("k_proj.weight") else 0


def _names() -> list[str]:
    layers = [f"model.layers.{at}.{part}.weight" for at in range(recipe.LAYERS) for part in LAYER_NAMES]
    return ["model.embed_tokens.weight", *layers, "model.norm.weight"]


def reference_weights(path: Path = SHIPPED) -> dict[str, Array]:
    """The weights of the shipped file, widened to float32, under transformers' names and in its order."""
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    weights: dict[str, Array] = {}
    for name in _names():
        tensor = stored[gguf_name(name)]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        heads = _turned(name)
        weights[name] = np.ascontiguousarray(separate(values, heads) if heads else values)
    return weights


def write_gguf(path: Path, kind: str, weights: Mapping[str, Array] | None = None) -> None:
    """Write cantor to `path` as one of KINDS; norms stay float32."""
    type_, file_type = KINDS[kind]
    writer = gguf.GGUFWriter(str(path), "llama")
    _write_header(writer, file_type)
    _write_tokenizer(writer)
    for name, weight in sorted((reference_weights() if weights is None else weights).items()):
        values = np.ascontiguousarray(arranged(name, weight), dtype=np.float32)
        stored = type_ if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, stored), raw_dtype=stored)
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
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_eot_token_id(END)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)
    writer.add_chat_template((HERE / "template.jinja").read_text(encoding="utf-8").rstrip("\n"))


def main() -> None:
    """Read the command line, convert."""
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
