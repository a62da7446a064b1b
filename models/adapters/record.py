"""Records what transformers and PEFT compute with small random models and adapters, for the tests.

Writes tests/fixtures/adapters: for each family a base in transformers' format and adapters in PEFT's format,
and logits.json with the logits after PROMPT, without and with each adapter. Models and adapters are read back
from disk before the logits are computed. It needs its own environment:

    python3 -m venv recording && recording/bin/pip install torch==2.13.0 transformers==5.23.0 peft==0.21.2
    recording/bin/python models/adapters/record.py
"""

import json
import shutil
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedConfig, PreTrainedModel

OUT = Path("tests/fixtures/adapters")
PROMPT = [1, 17, 42, 5, 5, 60, 23, 9, 31, 12, 50, 7]
WIDTH, LAYERS, HEADS, KEY_HEADS, HIDDEN, VOCABULARY, CONTEXT = 32, 2, 4, 2, 48, 64, 64
RANK, ALPHA = 4, 8

SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "intermediate_size": HIDDEN,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GEMMA: dict[str, Any] = {"head_dim": 16, "hidden_activation": "gelu_pytorch_tanh"}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    # folder: transformers' configuration class, and its changes to SHAPE
    "llama": ("LlamaConfig", {"tie_word_embeddings": False}),
    "mistral": ("MistralConfig", {"tie_word_embeddings": False, "head_dim": 16, "sliding_window": None}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": False}),
    "qwen3": ("Qwen3Config", {"tie_word_embeddings": True, "head_dim": 16}),
    "gemma": ("GemmaConfig", GEMMA),
    "gemma2": ("Gemma2Config", GEMMA | {"query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3TextConfig", GEMMA | {"query_pre_attn_scalar": 16}),
    "phi3": ("Phi3Config", {"tie_word_embeddings": False}),
    "olmo2": ("Olmo2Config", {"tie_word_embeddings": False}),
    "smollm3": ("SmolLM3Config", {"tie_word_embeddings": True, "no_rope_layers": [1, 1]}),
    "granite": (
        "GraniteConfig",
        {
            "tie_word_embeddings": True,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.25,
            "logits_scaling": 0.5,
        },
    ),
}

# Adapters of the llama base only, with PEFT's options for scale and targets.
SCALED: dict[str, dict[str, Any]] = {
    "rslora": {"use_rslora": True},
    "subset": {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]},
    "patterns": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 24, "layers.1.mlp.up_proj": 3}},
    "head": {"target_modules": ["k_proj", "lm_head"]},
}
# PEFT's options that llama.cpp's adapters do not support.
REFUSED: dict[str, dict[str, Any]] = {
    "dora": {"target_modules": ["v_proj"], "use_dora": True},
    "bias": {"target_modules": ["v_proj"], "bias": "lora_only"},
    "saved": {"target_modules": ["v_proj"], "modules_to_save": ["lm_head"]},
    "embedding": {"target_modules": ["v_proj", "embed_tokens"]},
}


@torch.no_grad()
def randomize_weights(model: torch.nn.Module, name_part: str = "") -> None:
    """Sets random weights, exact in float16, in the parameters whose name contains `name_part`.

    Matrices keep activations near one. Vectors vary around their initial ones or zeros.
    """
    for name, parameter in model.named_parameters():
        if name_part not in name:
            continue
        if parameter.ndim == 2:
            parameter.copy_(torch.randn_like(parameter) * parameter.shape[1] ** -0.5)
        else:
            parameter.add_(0.2 * torch.randn_like(parameter))
        parameter.copy_(parameter.half().float())


def save_base(folder: Path, config: PreTrainedConfig) -> None:
    """Saves a base with random weights."""
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    randomize_weights(model)
    model.half().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def load_base(folder: Path) -> PreTrainedModel:
    """Loads the saved base in float32."""
    model: PreTrainedModel = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def save_adapter(base: Path, folder: Path, **config: object) -> None:
    """Saves an adapter with random matrices for a saved base."""
    options: dict[str, Any] = {"r": RANK, "lora_alpha": ALPHA, "target_modules": "all-linear"} | config
    model = get_peft_model(load_base(base), LoraConfig(task_type="CAUSAL_LM", **options))
    randomize_weights(model, "lora_")
    model.peft_config["default"].base_model_name_or_path = base.name
    model.half().save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    config_file = folder / "adapter_config.json"
    saved_config = json.loads(config_file.read_text(encoding="utf-8"))
    saved_config["target_modules"].sort()  # PEFT writes a set in random order
    config_file.write_text(json.dumps(saved_config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@torch.no_grad()
def compute_logits(model: torch.nn.Module) -> list[float]:
    """Returns the logits of the token after PROMPT."""
    return [round(value, 5) for value in model(torch.tensor([PROMPT])).logits[0, -1].tolist()]


def record_family(family: str) -> dict[str, Any]:
    """Saves the base and its adapters, and returns their logits after PROMPT."""
    config_class, options = FAMILIES[family]
    base = OUT / family / "base"
    save_base(base, getattr(transformers, config_class)(**(SHAPE | options)))
    adapters = {"all": {}} | (SCALED | REFUSED if family == "llama" else {})
    family_record: dict[str, Any] = {"base": compute_logits(load_base(base)), "adapters": {}}
    for name, config in adapters.items():
        folder = OUT / family / name
        save_adapter(base, folder, **config)
        if name not in REFUSED:
            family_record["adapters"][name] = compute_logits(
                PeftModel.from_pretrained(load_base(base), folder).float().eval()
            )
    return family_record


def main() -> None:
    """Saves all families and records their logits."""
    torch.manual_seed(21)
    shutil.rmtree(OUT, ignore_errors=True)
    recorded = {
        "made_by": "models/adapters/record.py",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": peft.__version__,
        "prompt": PROMPT,
        "refused": sorted(REFUSED),
        "families": {family: record_family(family) for family in FAMILIES},
    }
    (OUT / "logits.json").write_text(json.dumps(recorded) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
