"""Writes a GGUF file of the Llama architecture with random weights, for tests and measurements.

The model generates random text, but it has all parts of a real one: a SentencePiece vocabulary with byte
fallback and control tokens, a chat template and grouped attention. The same arguments give the same file,
byte for byte.

python benchmarks/make_model.py --size half half.gguf # about 0.47 B parameters, Q8_0 python
benchmarks/make_model.py --size tiny --type f32 tiny.gguf
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import gguf
import numpy as np

from antiphon.domain.values import replace

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
CONTROL = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
INFILL = {
    "tokenizer.ggml.fim_pre_token_id": "<|before|>",
    "tokenizer.ggml.fim_suf_token_id": "<|after|>",
    "tokenizer.ggml.fim_mid_token_id": "<|middle|>",
}
"""Control tokens for filling in the middle, by the GGUF keys of their ids. llama.cpp recognises no such
name."""
BYTES = 256
SPACE = "▁"
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama model."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 192
    vocabulary: int = 1001
    context: int = 2048

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(int(np.prod(shape)) for _, shape in list_tensors(self))


SIZES = {
    "tiny": Shape(),
    "small": Shape(layers=6, hidden=256, heads=4, kv_heads=4, feed_forward=704, vocabulary=4096),
    "middle": Shape(
        layers=12, hidden=512, heads=8, kv_heads=4, feed_forward=1408, vocabulary=16384, context=4096
    ),
    "half": Shape(
        layers=22, hidden=1280, heads=20, kv_heads=5, feed_forward=3520, vocabulary=32768, context=4096
    ),
}


def list_tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the name and the shape (rows, columns) of every tensor."""
    hidden, kv_width = shape.hidden, shape.hidden // shape.heads * shape.kv_heads
    yield "token_embd.weight", (shape.vocabulary, hidden)
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm.weight", (hidden,)
        yield f"{block}.attn_q.weight", (hidden, hidden)
        yield f"{block}.attn_k.weight", (kv_width, hidden)
        yield f"{block}.attn_v.weight", (kv_width, hidden)
        yield f"{block}.attn_output.weight", (hidden, hidden)
        yield f"{block}.ffn_norm.weight", (hidden,)
        yield f"{block}.ffn_gate.weight", (shape.feed_forward, hidden)
        yield f"{block}.ffn_up.weight", (shape.feed_forward, hidden)
        yield f"{block}.ffn_down.weight", (hidden, shape.feed_forward)
    yield "output_norm.weight", (hidden,)
    yield "output.weight", (shape.vocabulary, hidden)


def build_pieces(count: int) -> list[str]:
    """Builds `count` different text pieces: characters first, then syllables, shortest first."""
    characters = [chr(code) for code in range(33, 127)]
    pieces = dict.fromkeys([SPACE, *characters, *(SPACE + letter for letter in LETTERS)])
    for length in range(2, 6):
        for syllable in product(LETTERS, repeat=length):
            word = "".join(syllable)
            pieces[word] = pieces[SPACE + word] = None
            if len(pieces) >= count:
                return list(pieces)[:count]
    return list(pieces)[:count]


def add_vocabulary(
    writer: gguf.GGUFWriter, size: int, infill: bool = False, controls: tuple[str, ...] = ()
) -> None:
    """Adds a SentencePiece vocabulary: <unk>, <s>, </s>, control tokens, 256 bytes, then text pieces.
    `controls`: further control tokens; those of spaces alone are ordinary tokens."""
    kinds = gguf.TokenType
    controls = (*CONTROL, *INFILL.values(), *controls) if infill else (*CONTROL, *controls)
    tokens = ["<unk>", "<s>", "</s>", *controls, *(f"<0x{byte:02X}>" for byte in range(BYTES))]
    types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL]
    types += [kinds.CONTROL if name.strip() else kinds.NORMAL for name in controls]
    types += [kinds.BYTE] * BYTES
    scores = [0.0] * len(tokens)
    pieces = build_pieces(size - len(tokens))
    if len(tokens) + len(pieces) != size:
        raise SystemExit(f"vocabulary must be from {len(tokens) + 100} to some millions, not {size}")
    tokens += pieces
    types += [kinds.NORMAL] * len(pieces)
    scores += [-float(rank) for rank in range(len(pieces))]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(tokens.index("<|end|>"))
    for key, name in INFILL.items() if infill else ():
        writer.add_uint32(key, tokens.index(name))
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)
    writer.add_chat_template(CHAT_TEMPLATE)


def copy_vocabulary(writer: gguf.GGUFWriter, file: Path) -> None:
    """Adds the tokenizer and the chat template of another GGUF file."""
    for name, value in gguf.GGUFReader(file).fields.items():
        if name.startswith("tokenizer."):
            kind, *part = value.types
            writer.add_key_value(name, value.contents(), kind, part[0] if part else None)


def add_shape(writer: gguf.GGUFWriter, shape: Shape, kind: gguf.GGMLQuantizationType) -> None:
    """Adds the metadata that the architecture needs."""
    writer.add_name("random weights")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(shape.hidden // shape.heads)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(
        gguf.LlamaFileType[f"MOSTLY_{kind.name}" if kind is not gguf.GGMLQuantizationType.F32 else "ALL_F32"]
    )


def add_weights(writer: gguf.GGUFWriter, shape: Shape, kind: gguf.GGMLQuantizationType, seed: int) -> None:
    """Adds random weights. Their scale keeps activations near one and spreads the logits."""
    random = np.random.default_rng(seed)
    for name, dimensions in list_tensors(shape):
        if len(dimensions) == 1:
            writer.add_tensor(name, np.ones(dimensions, dtype=np.float32))
            continue
        scale = (3.0 if name == "output.weight" else 1.0) / np.sqrt(dimensions[-1])
        weights = random.standard_normal(dimensions, dtype=np.float32) * np.float32(scale)
        quantized = gguf.quants.quantize(weights, kind)
        writer.add_tensor(name, quantized, raw_dtype=kind)


def write_model(
    path: Path,
    shape: Shape,
    weight_type: str = "q8_0",
    seed: int = 0,
    sampling: Mapping[str, float] | None = None,
    infill: bool = False,
    tokenizer: Path | None = None,
) -> Path:
    """Writes the file and returns its path. Columns must divide by 32 for quantized types.

    `sampling`: recommended sampling values, by llama.cpp's names (`temp`, `top_p`).
    `infill`: whether the model has tokens for filling in the middle.
    `tokenizer`: the GGUF file whose tokenizer and template it gets; `shape` must have as many tokens.
    """
    quantization = gguf.GGMLQuantizationType[weight_type.upper()]
    writer = gguf.GGUFWriter(path, "llama")
    add_shape(writer, shape, quantization)
    if tokenizer is None:
        add_vocabulary(writer, shape.vocabulary, infill)
    else:
        copy_vocabulary(writer, tokenizer)
    for name, value in (sampling or {}).items():
        writer.add_float32(f"general.sampling.{name}", value)
    add_weights(writer, shape, quantization, seed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--type", choices=TYPES, default="q8_0")
    parser.add_argument("--seed", type=int, default=0)
    for name in ("layers", "hidden", "heads", "kv_heads", "feed_forward", "vocabulary", "context"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="instead of the size's own")
    options = vars(parser.parse_args())
    path, size, weight_type, seed = (options.pop(name) for name in ("path", "size", "type", "seed"))
    shape = replace(SIZES[size], **{name: value for name, value in options.items() if value is not None})
    write_model(path, shape, weight_type, seed)
    print(
        f"{path}: {shape.parameters / 1e6:.1f} M parameters, {weight_type}, "
        f"{path.stat().st_size / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    main()
