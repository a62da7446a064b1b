"""Records what transformers and PEFT compute with small random models and adapters, for the tests.

Writes tests/fixtures/adapters: for each family a base as transformers saves one, adapters as PEFT saves them,
and logits.json with what follows PROMPT, without and with each adapter. All are read back from disk before
anything is computed. Needs an environment of its own:

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
    # folder: transformers' configuration, and what differs from SHAPE
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

# Of the llama base alone: what a configuration of PEFT may say about scale and place ...
SCALED: dict[str, dict[str, Any]] = {
    "rslora": {"use_rslora": True},
    "subset": {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]},
    "patterns": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 24, "layers.1.mlp.up_proj": 3}},
    "head": {"target_modules": ["k_proj", "lm_head"]},
}
# ... and what an adapter of llama.cpp cannot hold.
REFUSED: dict[str, dict[str, Any]] = {
    "dora": {"target_modules": ["v_proj"], "use_dora": True},
    "bias": {"target_modules": ["v_proj"], "bias": "lora_only"},
    "saved": {"target_modules": ["v_proj"], "modules_to_save": ["lm_head"]},
    "embedding": {"target_modules": ["v_proj", "embed_tokens"]},
}


@torch.no_grad()
def spread(model: torch.nn.Module, names: str = "") -> None:
    """Random values that keep activations near one; those that begin as ones or zeros vary about that.

    All are exact in float16. `names`: only parameters whose name holds it.
    """
    for name, weight in model.named_parameters():
        if names not in name:
            continue
        if weight.ndim == 2:
            weight.copy_(torch.randn_like(weight) * weight.shape[1] ** -0.5)
        else:
            weight.add_(0.2 * torch.randn_like(weight))
        weight.copy_(weight.half().float())


def save_base(folder: Path, config: PreTrainedConfig) -> None:
    """A base with random weights."""
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    spread(model)
    model.half().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def load(folder: Path) -> PreTrainedModel:
    """The saved base, in float32."""
    model: PreTrainedModel = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def save_adapter(base: Path, folder: Path, **config: object) -> None:
    """An adapter with random matrices for a saved base."""
    given: dict[str, Any] = {"r": RANK, "lora_alpha": ALPHA, "target_modules": "all-linear"} | config
    model = get_peft_model(load(base), LoraConfig(task_type="CAUSAL_LM", **given))
    spread(model, "lora_")
    model.peft_config["default"].base_model_name_or_path = base.name
    model.half().save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    file = folder / "adapter_config.json"
    said = json.loads(file.read_text(encoding="utf-8"))
    said["target_modules"].sort()  # a set of PEFT's: in another order each time
    file.write_text(json.dumps(said, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@torch.no_grad()
def logits(model: torch.nn.Module) -> list[float]:
    """Of the token after PROMPT."""
    return [round(value, 5) for value in model(torch.tensor([PROMPT])).logits[0, -1].tolist()]


def record(family: str) -> dict[str, Any]:
    """Save the base and its adapters; what follows PROMPT."""
    kind, changes = FAMILIES[family]
    base = OUT / family / "base"
    save_base(base, getattr(transformers, kind)(**(SHAPE | changes)))
    adapters = {"all": {}} | (SCALED | REFUSED if family == "llama" else {})
    found: dict[str, Any] = {"base": logits(load(base)), "adapters": {}}
    for name, config in adapters.items():
        folder = OUT / family / name
        save_adapter(base, folder, **config)
        if name not in REFUSED:
            found["adapters"][name] = logits(PeftModel.from_pretrained(load(base), folder).float().eval())
    return found


def main() -> None:
    """Make, save, compute, record."""
    torch.manual_seed(21)
    shutil.rmtree(OUT, ignore_errors=True)
    said = {
        "made_by": "models/adapters/record.py",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": peft.__version__,
        "prompt": PROMPT,
        "refused": sorted(REFUSED),
        "families": {family: record(family) for family in FAMILIES},
    }
    (OUT / "logits.json").write_text(json.dumps(said) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
