"""Converts the recorded small bases to GGUF in F32, without a tokenizer, for tests only.

It shares no code with Antiphon's converters, so that tests can compare the two. It reorders query and key
rows and shifts Gemma's norms for llama.cpp; the tests compare llama.cpp's logits with the recorded ones.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3"}
"""llama.cpp's architecture names of transformers' model types, if they differ."""

INTERLEAVED = ("llama", "smollm3", "granite")
"""Architectures for which llama.cpp rotates neighbouring rows, not the two halves of a head."""

Values = NDArray[np.float32]


def write_base(folder: Path, path: Path) -> None:
    """Converts the base that transformers saved in `folder` to a GGUF at `path`."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architecture = ARCHITECTURES.get(config["model_type"], config["model_type"])
    architecture_id = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(architecture_id, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, architecture)
    _write_shape(writer, config)
    for name, values in sorted(load_file(folder / "model.safetensors").items()):
        converted = _convert_tensor(name, values.astype(np.float32), architecture, config)
        writer.add_tensor(str(names.get_name(name, (".weight", ".bias"))), np.ascontiguousarray(converted))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _convert_tensor(name: str, values: Values, architecture: str, config: dict[str, Any]) -> Values:
    """Converts a tensor to llama.cpp's row order and norms."""
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return values + np.float32(1.0)
    if architecture in INTERLEAVED and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        halves = values.reshape(heads, 2, -1, values.shape[1])
        return np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(values.shape)
    return values


def _write_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Writes the metadata that all architectures need."""
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
    """Writes the metadata that only some architectures have."""
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
