"""Records what transformers computes of small random models that see, for the tests.

Writes tests/fixtures/media/answers.json: for each family the tokens that follow a prompt with one picture,
and their log-probabilities. The weights are those of the GGUF files that benchmarks/make_media_model.py
writes. The picture has the sides that the projector sees, so nobody resizes it. It needs its own environment:

    python3 -m venv recording
    recording/bin/pip install torch==2.13.0 transformers==5.23.0 gguf==0.19.0 msgspec==0.23.0
    PYTHONPATH=src:. recording/bin/python models/media/record.py

Idefics 3 and Qwen2-VL are transformers' own classes. Gemma 3 is its tower and projector before a Llama, as in
the GGUF files, where the cells of the picture see each other.

GELU is the approximation by tanh everywhere, as in llama.cpp.
"""

import json
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3MultiModalProjector

from benchmarks.make_media_model import (
    VISION_SHAPES,
    VisionShape,
    draw_pattern,
    write_projector,
    write_text_model,
)
from benchmarks.make_model import SIZES

OUT = Path("tests/fixtures/media/answers.json")
PREFIX, SUFFIX = [1, 301, 417, 588, 302], [910, 377, 640, 299, 455]
LENGTH = 8
IMAGE_TOKEN = 1000
"""A token of the vocabulary that stands for a cell of the picture."""

TEXT = SIZES["tiny"]
ACTIVATION = "gelu_pytorch_tanh"

Weights = Mapping[str, torch.Tensor]
Forward = Callable[[torch.Tensor], torch.Tensor]
"""Returns the logits of the last token, from the ids of a prompt."""

TEXT_NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
VISION_NAMES = {
    "patch_embd": "embeddings.patch_embedding",
    "position_embd": "embeddings.position_embedding",
    "post_ln": "post_layernorm",
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}


def read_weights(path: Path) -> Weights:
    """Returns the tensors of a GGUF file in F32."""
    return {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in gguf.GGUFReader(path).tensors}


def convert_text(weights: Weights, prefix: str, is_interleaved: bool) -> dict[str, torch.Tensor]:
    """Returns the weights of the text model by transformers' names. `is_interleaved`: llama.cpp rotates
    neighbouring rows of queries and keys, and transformers the two halves of a head."""
    converted = {"lm_head.weight": weights["output.weight"]}
    for name, values in weights.items():
        if (match := re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)) is None or match[
            2
        ] == "output":
            continue
        layer, stem, kind = match.groups()
        place = "" if layer is None else f"layers.{layer}."
        rows = values
        if is_interleaved and stem in ("attn_q", "attn_k"):
            heads = TEXT.heads if stem == "attn_q" else TEXT.kv_heads
            rows = values.reshape(heads, -1, 2, values.shape[1]).transpose(1, 2).reshape(values.shape)
        converted[f"{prefix}{place}{TEXT_NAMES[stem]}.{kind}"] = rows
    return converted


def convert_vision(weights: Weights, prefix: str) -> dict[str, torch.Tensor]:
    """Returns the weights of a vision tower like SigLIP's by transformers' names."""
    converted = {}
    for name, values in weights.items():
        if match := re.fullmatch(r"v\.(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name):
            layer, stem, kind = match.groups()
            place = "" if layer is None else f"encoder.layers.{layer}."
            converted[f"{prefix}{place}{VISION_NAMES[stem]}.{kind}"] = values
    return converted


def load(model: nn.Module, weights: Weights, unused: str = "^$") -> None:
    """Loads all weights. Only those whose name matches `unused` may be missing."""
    missing, unexpected = model.load_state_dict(dict(weights), strict=False)
    missing = [name for name in missing if not re.search(unused, name)]
    if missing or unexpected:
        raise ValueError(f"missing: {missing}, unexpected: {unexpected}")
    model.eval()


def build_text_options(**more: object) -> dict[str, Any]:
    """Returns the options of the text model's configuration."""
    return {
        "vocab_size": TEXT.vocabulary,
        "hidden_size": TEXT.hidden,
        "num_hidden_layers": TEXT.layers,
        "num_attention_heads": TEXT.heads,
        "num_key_value_heads": TEXT.kv_heads,
        "intermediate_size": TEXT.feed_forward,
        "max_position_embeddings": TEXT.context,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | more


def build_vision_options(shape: VisionShape) -> dict[str, Any]:
    """Returns the options of the configuration of a vision tower like SigLIP's."""
    return {
        "hidden_size": shape.width,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "image_size": shape.side,
        "patch_size": shape.patch,
        "layer_norm_eps": 1e-6,
        "hidden_act": ACTIVATION,
    }


def open_idefics3(text: Weights, vision: Weights, shape: VisionShape, pixels: torch.Tensor) -> Forward:
    config = transformers.Idefics3Config(
        vision_config=build_vision_options(shape),
        text_config=transformers.LlamaConfig(**build_text_options()),
        image_token_id=IMAGE_TOKEN,
        scale_factor=shape.merge,
    )
    model = transformers.Idefics3ForConditionalGeneration(config)
    tower = convert_vision(vision, "model.vision_model.")
    tower["model.connector.modality_projection.proj.weight"] = vision["mm.model.fc.weight"]
    load(model, convert_text(text, "model.text_model.", True) | tower)
    both = torch.stack([pixels[0], pixels[0]])[None]  # a tile, and the whole picture, which is the same here
    return lambda ids: model(input_ids=ids, pixel_values=both).logits[0, -1]


def open_qwen2vl(text: Weights, vision: Weights, shape: VisionShape, pixels: torch.Tensor) -> Forward:
    eighth = TEXT.hidden // TEXT.heads // 8
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2 * eighth, eighth, eighth]}
    config = transformers.Qwen2VLConfig(
        text_config=build_text_options(rope_parameters=rope),
        vision_config={
            "depth": shape.layers,
            "embed_dim": shape.width,
            "hidden_size": TEXT.hidden,
            "mlp_ratio": shape.feed_forward // shape.width,
            "num_heads": shape.heads,
            "patch_size": shape.patch,
            "hidden_act": ACTIVATION,
        },
        image_token_id=IMAGE_TOKEN,
        tie_word_embeddings=False,
    )
    model = transformers.Qwen2VLForConditionalGeneration(config)
    model.model.visual.merger.mlp[1] = nn.GELU(approximate="tanh")
    frames = [vision["v.patch_embd.weight"], vision["v.patch_embd.weight.1"]]
    tower = {"model.visual.patch_embed.proj.weight": torch.stack(frames, dim=2)}
    for name, new_name in (("v.post_ln", "ln_q"), ("mm.0", "mlp.0"), ("mm.2", "mlp.2")):
        for kind in ("weight", "bias"):
            tower[f"model.visual.merger.{new_name}.{kind}"] = vision[f"{name}.{kind}"]
    names = {
        "ln1": "norm1",
        "ln2": "norm2",
        "ffn_up": "mlp.fc1",
        "ffn_down": "mlp.fc2",
        "attn_out": "attn.proj",
    }
    for layer in range(shape.layers):
        block, new_block = f"v.blk.{layer}", f"model.visual.blocks.{layer}"
        for kind in ("weight", "bias"):
            for name, new_name in names.items():
                tower[f"{new_block}.{new_name}.{kind}"] = vision[f"{block}.{name}.{kind}"]
            parts = [vision[f"{block}.attn_{part}.{kind}"] for part in "qkv"]
            tower[f"{new_block}.attn.qkv.{kind}"] = torch.cat(parts)
    load(model, convert_text(text, "model.language_model.", False) | tower)
    grid, merge = shape.side // shape.patch, shape.merge
    # The patches of one cell follow each other, and each one has the picture as its two frames.
    blocks = pixels.reshape(1, 3, grid // merge, merge, shape.patch, grid // merge, merge, shape.patch)
    blocks = blocks.expand(2, *blocks.shape[1:]).permute(2, 5, 3, 6, 1, 0, 4, 7)
    patches, sides = blocks.reshape(grid * grid, -1), torch.tensor([[1, grid, grid]])

    def compute(ids: torch.Tensor) -> torch.Tensor:
        kinds = (ids == IMAGE_TOKEN).int()
        output = model(input_ids=ids, pixel_values=patches, image_grid_thw=sides, mm_token_type_ids=kinds)
        return output.logits[0, -1]

    return compute


def open_gemma3(text: Weights, vision: Weights, shape: VisionShape, pixels: torch.Tensor) -> Forward:
    tower = transformers.SiglipVisionModel(
        transformers.SiglipVisionConfig(**build_vision_options(shape), vision_use_head=False)
    )
    load(tower, convert_vision(vision, ""), "^head")
    options = build_vision_options(shape)
    projector = Gemma3MultiModalProjector(
        transformers.Gemma3Config(
            vision_config=options,
            text_config={"hidden_size": TEXT.hidden},
            mm_tokens_per_image=(shape.side // shape.patch // shape.merge) ** 2,
        )
    )
    weights = {
        "mm_input_projection_weight": vision["mm.input_projection.weight"],
        "mm_soft_emb_norm.weight": vision["mm.soft_emb_norm.weight"] - 1,
    }
    load(projector, weights)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**build_text_options()))
    load(model, convert_text(text, "model.", True))
    cells = projector(tower(pixels).last_hidden_state)

    def compute(ids: torch.Tensor) -> torch.Tensor:
        is_cell = ids[0] == IMAGE_TOKEN
        embeddings = model.get_input_embeddings()(ids)
        embeddings[0, is_cell] = cells[0]
        count = ids.shape[1]
        is_seen = torch.ones(count, count).tril().bool() | (is_cell[:, None] & is_cell[None, :])
        mask = torch.zeros(1, 1, count, count).masked_fill(~is_seen, torch.finfo(torch.float32).min)
        return model(inputs_embeds=embeddings, attention_mask=mask).logits[0, -1]

    return compute


OPENERS = {
    "gemma3": open_gemma3,
    "qwen2vl": open_qwen2vl,
    "idefics3": open_idefics3,
}


@torch.no_grad()
def record(family: str, folder: Path) -> dict[str, object]:
    """Returns the prompt, the likeliest tokens after it, and their log-probabilities."""
    shape = replace(VISION_SHAPES[family], tiles=1)
    text = read_weights(write_text_model(folder / "text.gguf", family))
    vision = read_weights(write_projector(folder / "projector.gguf", family, shape=shape))
    picture = torch.frombuffer(bytearray(draw_pattern(shape.side)), dtype=torch.uint8)
    pixels = picture.reshape(shape.side, shape.side, 3).permute(2, 0, 1)[None].float() / 127.5 - 1
    compute = OPENERS[family](text, vision, shape, pixels)
    cells = (shape.side // shape.patch // shape.merge) ** 2 * (2 if family == "idefics3" else 1)
    ids = PREFIX + [IMAGE_TOKEN] * cells + SUFFIX
    tokens, logprobs, margins = [], [], []
    for _ in range(LENGTH):
        scores = compute(torch.tensor([ids])).log_softmax(-1)
        best = scores.topk(2)
        tokens.append(int(best.indices[0]))
        logprobs.append(round(float(best.values[0]), 5))
        margins.append(float(best.values[0] - best.values[1]))
        ids.append(tokens[-1])
    print(f"{family}: {logprobs}, the second token is at least {min(margins):.3f} behind")
    return {"prefix": PREFIX, "suffix": SUFFIX, "tokens": tokens, "logprobs": logprobs}


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        answers = {family: record(family, Path(folder)) for family in OPENERS}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
