"""Writes a pair of GGUF files with random weights: a text model, and its projector for images or recordings.

Each family is one that llama.cpp treats in its own way:

- gemma3: the cells of a picture see each other, so a picture is computed alone and whole;
- qwen2vl: a picture has fewer positions than cells (M-RoPE), and its size decides how many;
- llava: as many cells for every picture, computed like text;
- idefics3: a picture is cut into tiles, with text between them;
- ultravox: recordings, in parts of thirty seconds.

The same arguments give the same files, byte for byte. A pair takes about 1.5 MB. With `--smolvlm` the
projector of idefics3 has the size of SmolVLM's: 93 M weights, 186 MB.

python benchmarks/make_media_model.py gemma3 text.gguf mmproj.gguf
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from benchmarks.make_model import SIZES, Shape, add_shape, add_vocabulary, list_tensors

FAMILIES = ("gemma3", "qwen2vl", "llava", "idefics3")
"""The families that see."""

HEARING = "ultravox"
"""The family that hears."""

MARKERS = {
    "gemma3": ("<start_of_image>", "<end_of_image>"),
    "qwen2vl": ("<|vision_start|>", "<|vision_end|>"),
    "llava": (),
    "ultravox": (),
    "idefics3": (
        "\n\n",
        "\n",
        "<fake_token_around_image>",
        "<global-img>",
        *(f"<row_{row}_col_{column}>" for row in range(1, 3) for column in range(1, 3)),
    ),
}
"""The tokens that the library puts around the cells of a picture."""

PROJECTOR_TYPES = {"gemma3": "gemma3", "qwen2vl": "qwen2vl_merger", "llava": "mlp", "idefics3": "idefics3"}
WIDTH, HEADS, FEED_FORWARD, LAYERS = 48, 4, 96, 2


@dataclass(frozen=True)
class VisionShape:
    """Sizes of a projector for images."""

    side: int = 64
    """Pixels of one side of the pictures that the encoder sees, or of a tile."""
    patch: int = 8
    merge: int = 2
    """How many patches of a row become one cell."""
    tiles: int = 2
    """The most tiles of one side of a picture."""
    width: int = WIDTH
    heads: int = HEADS
    feed_forward: int = FEED_FORWARD
    layers: int = LAYERS
    kind: type[np.floating] = np.float32
    """The number format of the matrices."""


VISION_SHAPES = {
    "gemma3": VisionShape(),
    "qwen2vl": VisionShape(side=112, patch=14),
    # the library leaves out the last layer
    "llava": VisionShape(merge=1, layers=LAYERS + 1),
    "idefics3": VisionShape(),
}
SMOLVLM = VisionShape(512, 16, 4, 1, 768, 12, 3072, 12, np.float16)
"""The sizes of SmolVLM's projector. A picture is one tile here. With SmolVLM it is seventeen, each of which
takes as long."""


def draw_pattern(side: int) -> bytes:
    """Returns the pixels of a square picture, the same at every call."""
    rows, columns, colors = np.ogrid[:side, :side, :3]
    pixels = np.asarray(rows * columns + 7 * rows + 13 * columns + 50 * colors) % 256
    return bytes(pixels.astype(np.uint8))


def write_text_model(path: Path, family: str, shape: Shape = SIZES["tiny"], seed: int = 0) -> Path:
    """Writes the text model of a family."""
    writer = gguf.GGUFWriter(path, "qwen2vl" if family == "qwen2vl" else "llama")
    add_shape(writer, shape, gguf.GGMLQuantizationType.F32)
    add_vocabulary(writer, shape.vocabulary, controls=MARKERS[family])
    random, width = np.random.default_rng(seed), shape.hidden // shape.heads
    for name, dimensions in list_tensors(shape):
        is_norm = len(dimensions) == 1
        scale = (3.0 if name == "output.weight" else 1.0) / np.sqrt(dimensions[-1])
        weights = random.standard_normal(dimensions, dtype=np.float32) * np.float32(scale)
        writer.add_tensor(name, np.ones(dimensions, np.float32) if is_norm else weights)
    if family == "qwen2vl":
        quarter = width // 8
        writer.add_rope_dimension_sections([width // 2 - 2 * quarter, quarter, quarter, 0])
        for layer in range(shape.layers):
            for name, size in (
                ("q", shape.hidden),
                ("k", width * shape.kv_heads),
                ("v", width * shape.kv_heads),
            ):
                bias = random.standard_normal(size, dtype=np.float32) * np.float32(0.1)
                writer.add_tensor(f"blk.{layer}.attn_{name}.bias", bias)
    return _close(writer, path)


def write_projector(
    path: Path,
    family: str,
    text_width: int = SIZES["tiny"].hidden,
    seed: int = 0,
    shape: VisionShape | None = None,
) -> Path:
    """Writes the projector of a family, for text models of this width. `shape`: its sizes, if not the usual
    ones."""
    writer, random = gguf.GGUFWriter(path, "clip"), np.random.default_rng(seed + 1)
    shape = shape or VISION_SHAPES[family]
    side, patch, width, feed_forward = shape.side, shape.patch, shape.width, shape.feed_forward
    row = width * shape.merge**2

    def add(name: str, *dimensions: int) -> None:
        """Adds a tensor of random weights."""
        scale = np.float32(1 / np.sqrt(np.prod(dimensions[1:]) if len(dimensions) > 1 else 100))
        weights = random.standard_normal(dimensions, dtype=np.float32) * scale
        is_matrix = len(dimensions) > 1 and "_embd" not in name  # the library adds positions in F32 only
        writer.add_tensor(name, weights.astype(shape.kind if is_matrix else np.float32))

    def add_norm(name: str) -> None:
        """Adds the weights of a normalisation, near one and zero."""
        writer.add_tensor(f"{name}.weight", 1 + random.standard_normal(width, dtype=np.float32) / 10)
        writer.add_tensor(f"{name}.bias", random.standard_normal(width, dtype=np.float32) / 10)

    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    writer.add_string("clip.projector_type", PROJECTOR_TYPES[family])
    for key, value in {
        "embedding_length": width,
        "feed_forward_length": feed_forward,
        "block_count": shape.layers,
        "projection_dim": text_width,
        "attention.head_count": shape.heads,
        "image_size": side,
        "patch_size": patch,
    }.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    if family in ("gemma3", "idefics3"):
        writer.add_uint32("clip.vision.projector.scale_factor", shape.merge)
    if family == "idefics3":
        writer.add_uint32("clip.vision.preproc_image_size", shape.tiles * side)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for name in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{name}", [0.5, 0.5, 0.5])
    add("v.patch_embd.weight", width, 3, patch, patch)
    if family == "qwen2vl":
        add("v.patch_embd.weight.1", width, 3, patch, patch)
    else:
        add("v.patch_embd.bias", width)
        add("v.position_embd.weight", (side // patch) ** 2 + (family == "llava"), width)
    if family == "llava":
        add("v.class_embd", width)
        add_norm("v.pre_ln")
    else:
        add_norm("v.post_ln")
    for layer in range(shape.layers):
        block = f"v.blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            add(f"{block}.{name}.weight", width, width)
            add(f"{block}.{name}.bias", width)
        add_norm(f"{block}.ln1")
        add_norm(f"{block}.ln2")
        add(f"{block}.ffn_up.weight", feed_forward, width)
        add(f"{block}.ffn_up.bias", feed_forward)
        add(f"{block}.ffn_down.weight", width, feed_forward)
        add(f"{block}.ffn_down.bias", width)
    match family:
        case "gemma3":
            writer.add_tensor("mm.soft_emb_norm.weight", np.ones(width, np.float32))
            add("mm.input_projection.weight", width, text_width)
        case "qwen2vl" | "llava":
            add("mm.0.weight", row, row)
            add("mm.0.bias", row)
            add("mm.2.weight", text_width, row)
            add("mm.2.bias", text_width)
        case "idefics3":
            add("mm.model.fc.weight", text_width, row)
    return _close(writer, path)


def write_hearing_projector(path: Path, text_width: int = SIZES["tiny"].hidden, seed: int = 0) -> Path:
    """Writes the projector of the family that hears."""
    writer, random = gguf.GGUFWriter(path, "clip"), np.random.default_rng(seed + 2)
    bins, stack, hidden = 16, 4, 64

    def add(name: str, *dimensions: int, kind: type[np.floating] = np.float32) -> None:
        """Adds a tensor of random weights."""
        scale = np.float32(1 / np.sqrt(np.prod(dimensions[1:]) if len(dimensions) > 1 else 100))
        writer.add_tensor(name, (random.standard_normal(dimensions, dtype=np.float32) * scale).astype(kind))

    def add_norm(name: str, width: int) -> None:
        """Adds the weights of a normalisation, near one and zero."""
        writer.add_tensor(f"{name}.weight", 1 + random.standard_normal(width, dtype=np.float32) / 10)
        writer.add_tensor(f"{name}.bias", random.standard_normal(width, dtype=np.float32) / 10)

    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_string("clip.projector_type", HEARING)
    for key, value in {
        "embedding_length": WIDTH,
        "feed_forward_length": FEED_FORWARD,
        "block_count": LAYERS,
        "projection_dim": text_width,
        "attention.head_count": HEADS,
        "num_mel_bins": bins,
        "projector.stack_factor": stack,
    }.items():
        writer.add_uint32(f"clip.audio.{key}", value)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
    add("a.conv1d.1.weight", WIDTH, bins, 3, kind=np.float16)
    add("a.conv1d.1.bias", WIDTH, 1)
    add("a.conv1d.2.weight", WIDTH, WIDTH, 3, kind=np.float16)
    add("a.conv1d.2.bias", WIDTH, 1)
    add("a.position_embd.weight", 1500, WIDTH)
    add_norm("a.post_ln", WIDTH)
    for layer in range(LAYERS):
        block = f"a.blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            add(f"{block}.{name}.weight", WIDTH, WIDTH)
            if name != "attn_k":
                add(f"{block}.{name}.bias", WIDTH)
        add_norm(f"{block}.ln1", WIDTH)
        add_norm(f"{block}.ln2", WIDTH)
        add(f"{block}.ffn_up.weight", FEED_FORWARD, WIDTH)
        add(f"{block}.ffn_up.bias", FEED_FORWARD)
        add(f"{block}.ffn_down.weight", WIDTH, FEED_FORWARD)
        add(f"{block}.ffn_down.bias", WIDTH)
    add("mm.a.mlp.1.weight", 2 * hidden, WIDTH * stack)
    add("mm.a.mlp.2.weight", text_width, hidden)
    for name, width in (("norm_pre", WIDTH * stack), ("norm_mid", hidden)):
        writer.add_tensor(f"mm.a.{name}.weight", np.ones(width, np.float32))
    return _close(writer, path)


def _close(writer: gguf.GGUFWriter, path: Path) -> Path:
    """Writes a file, and returns its path."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("family", choices=(*FAMILIES, HEARING))
    parser.add_argument("text", type=Path)
    parser.add_argument("projector", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smolvlm", action="store_true", help="a projector as large as SmolVLM's")
    options = parser.parse_args()
    write_text_model(options.text, options.family, seed=options.seed)
    if options.family == HEARING:
        write_hearing_projector(options.projector, seed=options.seed)
    else:
        shape = SMOLVLM if options.smolvlm else None
        write_projector(options.projector, options.family, seed=options.seed, shape=shape)
    for path in (options.text, options.projector):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
