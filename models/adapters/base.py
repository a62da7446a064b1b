"""The recorded small bases as GGUF in F32, without a tokenizer, for tests and for no other use.

Independent of Antiphon's converters, so that one can be held against the other. Rows of queries and keys, and
the norms of Gemma, are put as llama.cpp has them; that it then computes the recorded logits shows it.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3"}
"""llama.cpp's names of transformers' model types, where they differ."""

TURNED = ("llama", "smollm3", "granite")
"""Architectures in which a rotation turns neighbours, not halves of a head."""

Values = NDArray[np.float32]


def write_base(folder: Path, path: Path) -> None:
    """Convert the base in `folder`, as transformers saved it."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architecture = ARCHITECTURES.get(config["model_type"], config["model_type"])
    kind = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, architecture)
    _write_shape(writer, config)
    for name, values in sorted(load_file(folder / "model.safetensors").items()):
        arranged = _arranged(name, values.astype(np.float32), architecture, config)
        writer.add_tensor(str(names.get_name(name, (".weight", ".bias"))), np.ascontiguousarray(arranged))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _arranged(name: str, values: Values, architecture: str, config: dict[str, Any]) -> Values:
    """A tensor as llama.cpp has it."""
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return values + np.float32(1.0)
    if architecture in TURNED and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        halves = values.reshape(heads, 2, -1, values.shape[1])
        return np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(values.shape)
    return values


def _write_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """The metadata that the architectures need."""
    heads, width = config["num_attention_heads"], config["hidden_size"]
    head = config.get("head_dim") or width // heads
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(width)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(head)
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    _write_extras(writer, config)


def _write_extras(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """What only some of the architectures have."""
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    for key, add in (
        ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
        ("final_logit_softcapping", writer.add_final_logit_softcapping),
        ("embedding_multiplier", writer.add_embedding_scale),
        ("residual_multiplier", writer.add_residual_scale),
        ("attention_multiplier", writer.add_attention_scale),
        ("logits_scaling", writer.add_logit_scale),
    ):
        if config.get(key) is not None:
            add(config[key])
