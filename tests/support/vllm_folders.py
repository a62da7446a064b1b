"""Folders of weights as vLLM serves them: cantor as safetensors, and the files beside the weights alone."""

import json
from pathlib import Path

from models.cantor import recipe
from models.cantor.convert import (
    BOS_ID,
    EOS_ID,
    HERE,
    LAYER_NAMES,
    TURN_END_ID,
    deinterleave,
    reference_weights,
    to_gguf_name,
)
from models.cantor.vocabulary import CONTROL, NORMAL, UNKNOWN, Piece, read_pieces


def write_facts(folder: Path) -> Path:
    """Writes the files beside the weights: configuration, tokenizer and template."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": recipe.WIDTH,
        "intermediate_size": recipe.HIDDEN,
        "num_hidden_layers": recipe.LAYERS,
        "num_attention_heads": recipe.HEADS,
        "num_key_value_heads": recipe.KV_HEADS,
        "head_dim": recipe.WIDTH // recipe.HEADS,
        "max_position_embeddings": recipe.CONTEXT,
        "rms_norm_eps": recipe.NORM_EPSILON,
        "rope_theta": recipe.ROPE_BASE,
        "hidden_act": "silu",
        "vocab_size": recipe.VOCABULARY,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
    }
    generation = {
        "eos_token_id": [EOS_ID, TURN_END_ID],
        "do_sample": True,
        "temperature": recipe.TEMPERATURE,
        "top_p": recipe.TOP_P,
    }
    pieces = read_pieces(HERE / "tokenizer.model")
    names = {"bos_token": pieces[BOS_ID].text, "eos_token": pieces[EOS_ID].text}
    for name, value in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", names),
        ("tokenizer.json", build_tokenizer(pieces)),
    ):
        (folder / name).write_text(json.dumps(value), "utf-8")
    template = (HERE / "template.jinja").read_text("utf-8").rstrip("\n")
    (folder / "chat_template.jinja").write_text(template, "utf-8")
    return folder


def write_few_weights(folder: Path) -> None:
    """Writes six numbers as the weights: enough where no model is loaded."""
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"lm_head.weight": np.zeros((2, 3), np.float32)}, folder / "model.safetensors")


def write_cantor(folder: Path) -> Path:
    """Writes cantor as a folder of weights in float32."""
    from safetensors.numpy import save_file

    write_facts(folder)
    save_file(reference_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def build_tokenizer(pieces: list[Piece]) -> dict[str, object]:
    """Builds tokenizer.json of SentencePiece's pieces: byte pair encoding with a fallback to bytes. Each part
    of a text between control tokens gets a space before it, as llama.cpp does."""
    vocabulary = {piece.text: index for index, piece in enumerate(pieces)}
    merges: list[tuple[float, int, list[str]]] = []
    for piece in pieces:
        if piece.type != NORMAL:
            continue
        for position in range(1, len(piece.text)):
            left, right = piece.text[:position], piece.text[position:]
            if left in vocabulary and right in vocabulary:
                merges.append((-piece.score, vocabulary[left], [left, right]))
    controls = [
        {
            "id": index,
            "content": piece.text,
            "special": True,
            "normalized": False,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
        for index, piece in enumerate(pieces)
        if piece.type in (CONTROL, UNKNOWN)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": controls,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": pieces[BOS_ID].text, "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"SpecialToken": {"id": pieces[BOS_ID].text, "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {
                pieces[BOS_ID].text: {
                    "id": pieces[BOS_ID].text,
                    "ids": [BOS_ID],
                    "tokens": [pieces[BOS_ID].text],
                }
            },
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": pieces[0].text,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [pair for _, _, pair in sorted(merges)],
        },
    }


def write_peft(source: Path, folder: Path) -> Path:
    """Writes a bundled GGUF adapter of cantor as a folder that PEFT would save."""
    import gguf
    import numpy as np
    from safetensors.numpy import save_file

    reader = gguf.GGUFReader(source)
    alpha = float(reader.fields["adapter.lora.alpha"].contents())
    weights, names = {}, {to_gguf_name(f"{name}.weight"): name for name in _list_modules()}
    for tensor in reader.tensors:
        module, _, half = tensor.name.rpartition(".")
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name = names[module]
        if half == "lora_b" and name.endswith(("q_proj", "k_proj")):
            values = deinterleave(values, recipe.HEADS if name.endswith("q_proj") else recipe.KV_HEADS)
        part = "lora_A" if half == "lora_a" else "lora_B"
        weights[f"base_model.model.{name}.{part}.weight"] = np.ascontiguousarray(values)
    rank = min(next(iter(weights.values())).shape)
    targets = sorted({name.split(".")[-3] for name in weights})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": targets, "bias": "none"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


def _list_modules() -> list[str]:
    """The modules of cantor that an adapter can change."""
    return [f"model.layers.{index}.{part}" for index in range(recipe.LAYERS) for part in LAYER_NAMES]
