"""From a LoRA adapter as PEFT saves it (adapter_config.json, adapter_model.safetensors) to llama.cpp's GGUF.

The base model's own GGUF decides: its architecture gives the tensor names, its heads the order of rows, its
shapes what fits. What PEFT can say and a GGUF adapter cannot is refused by name, never dropped. PEFT scales a
module by alpha/r (or alpha/sqrt(r)), llama.cpp by alpha over the rank that it sees, with one alpha for all;
what differs is folded into the B matrices.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from antiphon.errors import ModelFileError
from antiphon.weights.convert.tensors import Tensor, read_json, read_tensors
from antiphon.weights.gguf import Header

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

TURNED = frozenset({"llama", "granite", "smollm3"})
"""Architectures whose query and key rows llama.cpp keeps in another order than transformers: a rotation turns
neighbours there, halves of a head here. Mistral's models are of architecture `llama`."""

STRAIGHT = frozenset({"qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "olmo2"})
"""Architectures whose rows stay as they are."""

PREFIX = "base_model.model."
WRAPPED = (("", ""), ("model.language_model.", "model."), ("language_model.model.", "model."))
"""How modules of a text model begin inside one that sees too, and by themselves."""

TOKENS = "token_embd.weight"
"""The embeddings, which llama.cpp looks up instead of multiplying with them."""

PLAIN_NAME = re.compile(r"[\w.]+")
"""A module's name. PEFT takes regular expressions too, which a hostile file could make take for ever."""

KINDS: Mapping[str, type[np.float32] | type[np.float16]] = {"F32": np.float32, "F16": np.float16}

EMBEDDING = ".lora_embedding_"
MATRIX = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])(\.default)?\.weight")

NOTHING: tuple[object, ...] = (None, False, [], {})
"""Values with which a key of adapter_config.json asks for nothing."""

ACTING = frozenset(
    """
    bias use_dora lora_bias fan_in_fan_out modules_to_save layer_replication trainable_token_indices
    target_parameters megatron_config use_qalora alora_invocation_tokens kasa_config monteclora_config
    use_bdlora arrow_config
    """.split()
)
"""What a LoRA of PEFT may hold besides its two matrices for each module, and a GGUF adapter cannot."""

IDLE = frozenset(
    """
    peft_type task_type auto_mapping peft_version base_model_name_or_path revision inference_mode
    r target_modules exclude_modules lora_alpha lora_dropout use_rslora init_lora_weights
    layers_to_transform layers_pattern rank_pattern alpha_pattern megatron_core
    loftq_config eva_config corda_config lora_ga_config velora_config qalora_group_size runtime_config
    ensure_weight_tying
    """.split()
)
"""What is read here, or follows from the matrices, or mattered to the training alone."""

ALTERING = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to begin the training that change the base model too: such an adapter fits that changed base only."""


@dataclass(slots=True)
class Pair:
    """The two matrices of one module: B (outputs, rank) times A (rank, inputs)."""

    a: Tensor | None = None
    b: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """What adapter_config.json says of scale."""

    alpha: float
    by_root: bool
    """Whether the scale is alpha over the root of the rank (rsLoRA)."""
    alphas: Mapping[str, float] = field(default_factory=dict)
    """Other alphas, by the ends of module names."""

    def factor(self, module: str, rank: int) -> float:
        """What B is multiplied with, so that llama.cpp's alpha over rank gives PEFT's scale."""
        alpha = next(
            (value for pattern, value in self.alphas.items() if _matches(pattern, module)), self.alpha
        )
        return alpha / self.alpha * (math.sqrt(rank) if self.by_root else 1.0)


def is_peft(path: Path) -> bool:
    """Whether the directory is an adapter as PEFT saves it."""
    return (path / CONFIG).is_file()


def convert_peft(
    source: Path, base: Header, target: Path, kind: str = "F32", said: Mapping[str, str] | None = None
) -> None:
    """Writes the adapter in `source` as a GGUF adapter for the model `base`. Raises ModelFileError, and
    OSError when `target` cannot be written.

    `kind`: of the matrices, F32 or F16. `said`: more of the file's metadata, by key.
    """
    turned = _turns(base, source)
    config = read_config(source / CONFIG)
    pairs = read_pairs(source / WEIGHTS)
    tensors = dict(_build_tensors(pairs, config, base, turned, source))
    write(target, base.architecture, config.alpha, tensors, kind, said or {})


def read_config(path: Path) -> Config:
    """Raises ModelFileError for what is no LoRA, or one that GGUF cannot hold."""
    said = read_json(path)
    if said.get("peft_type") != "LORA":
        raise ModelFileError(f"{path} is of the type {said.get('peft_type')!r}; only LORA can be served")
    for key, value in said.items():
        if key not in IDLE and value not in NOTHING and (key, value) != ("bias", "none"):
            why = "cannot be held by an adapter of llama.cpp" if key in ACTING else "is not known here"
            raise ModelFileError(
                f"{path} has {key[:80]} = {json.dumps(value)[:80]}, which {why}; merge the adapter into its "
                "base model and convert that"
            )
    start = said.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(ALTERING):
        raise ModelFileError(
            f"{path} was begun with init_lora_weights = {start!r}, which changes the base model too; "
            "save it as a plain LoRA (PEFT's save_pretrained with path_initial_model_for_weight_conversion)"
        )
    alpha = _number(said.get("lora_alpha"))
    if alpha is None or alpha <= 0:
        raise ModelFileError(f"{path} needs a positive lora_alpha; it has {said.get('lora_alpha')!r}")
    alphas = said.get("alpha_pattern") or {}
    if not isinstance(alphas, dict) or None in map(_number, alphas.values()):
        raise ModelFileError(f"{path} has an alpha_pattern that is not a table of numbers")
    if odd := next((name for name in alphas if not PLAIN_NAME.fullmatch(name)), None):
        raise ModelFileError(f"{path} has the alpha_pattern {odd[:80]!r}; only names of modules are read")
    by_root = said.get("use_rslora", False)
    if not isinstance(by_root, bool):
        raise ModelFileError(f"{path} has use_rslora = {json.dumps(by_root)[:80]}; it must be true or false")
    return Config(alpha, by_root, alphas)


def read_pairs(path: Path) -> dict[str, Pair]:
    """The matrices by module, under transformers' names. Raises ModelFileError."""
    pairs: dict[str, Pair] = {}
    for name, values in read_tensors(path):
        if EMBEDDING in name:
            raise ModelFileError(
                f"{path} holds {name[:120]}: adapters of embeddings are not served; leave the embeddings out "
                "of target_modules, or merge the adapter into its base model and convert that"
            )
        match = MATRIX.fullmatch(name)
        if match is None or values.ndim != 2:
            raise ModelFileError(
                f"{path} holds {name[:120]}, which is no matrix lora_A or lora_B of a module"
            )
        pair = pairs.setdefault(match["module"].removeprefix(PREFIX), Pair())
        setattr(pair, match["part"].lower(), values)
    if not pairs:
        raise ModelFileError(f"{path} holds no matrices")
    return pairs


def write(
    target: Path,
    architecture: str,
    alpha: float,
    tensors: Mapping[str, Tensor],
    kind: str,
    said: Mapping[str, str],
) -> None:
    """Writes a GGUF adapter. Raises OSError."""
    import gguf

    writer = gguf.GGUFWriter(target, architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
    for key, value in sorted(said.items()):
        writer.add_string(key, value)
    for name, values in sorted(tensors.items()):
        writer.add_tensor(name, np.ascontiguousarray(values, dtype=KINDS[kind]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    whole = writer.fout[-1].tell() if writer.fout else 0
    writer.close()
    if target.stat().st_size < whole:  # numpy is silent about a last part that found no room
        raise OSError("not all of it could be written")


def _turns(base: Header, source: Path) -> bool:
    """Whether query and key rows are to be put into llama.cpp's order."""
    if base.architecture in TURNED:
        return True
    if base.architecture in STRAIGHT:
        return False
    known = ", ".join(sorted(TURNED | STRAIGHT))
    raise ModelFileError(
        f"{source} cannot be converted: the architecture {base.architecture} is not one of {known}; "
        "convert it with llama.cpp's convert_lora_to_gguf.py"
    )


def _build_tensors(
    pairs: Mapping[str, Pair], config: Config, base: Header, turned: bool, source: Path
) -> Iterator[tuple[str, Tensor]]:
    """Names and values as they stand in the GGUF."""
    names = _Names(base)
    for module, pair in pairs.items():
        if pair.a is None or pair.b is None:
            raise ModelFileError(f"{source} has only one of the two matrices of {module}")
        name = names.of(module)
        if name is None:
            raise ModelFileError(f"{source} adapts {module[:120]}, which {base.path.name} does not have")
        inputs, outputs = base.shapes[name][:2]
        if pair.a.shape[1] != inputs or pair.b.shape[0] != outputs or pair.a.shape[0] != pair.b.shape[1]:
            raise ModelFileError(
                f"{source} adapts {module} with {pair.b.shape[0]}x{pair.b.shape[1]} times {pair.a.shape[0]}x"
                f"{pair.a.shape[1]}, but in {base.path.name} it is {outputs}x{inputs}; it was made for "
                "another model"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            b = pair.b * np.float32(config.factor(module, pair.b.shape[1]))
        if not np.isfinite(b).all():
            raise ModelFileError(f"{source} scales {module} beyond what float32 holds")
        if turned and name.endswith(("attn_q.weight", "attn_k.weight")):
            b = turn(b, _head_width(base, outputs))
        yield f"{name}.lora_a", pair.a
        yield f"{name}.lora_b", b


def turn(rows: Tensor, width: int) -> Tensor:
    """Rows of queries or keys from transformers' order to llama.cpp's: within each head, of `width` rows,
    the rows of its halves take turns."""
    return rows.reshape(-1, 2, width // 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _head_width(base: Header, outputs: int) -> int:
    """How many of the rows are one head. Raises ModelFileError when the file does not say."""
    width = base.number("attention.key_length") or base.number("embedding_length") // max(1, base.heads)
    if not base.heads or not width or width % 2 or outputs % width:
        raise ModelFileError(
            f"{base.path.name} does not say how wide its heads are, so no adapter can be converted for it; "
            "convert it with llama.cpp's convert_lora_to_gguf.py"
        )
    return width


class _Names:
    """llama.cpp's names of transformers' modules, in one model."""

    def __init__(self, base: Header) -> None:
        import gguf

        found = [arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == base.architecture]
        self._map = gguf.get_tensor_name_map(found[0], base.layers)
        self._shapes = base.shapes

    def of(self, module: str) -> str | None:
        """The weight's name in the base model; None when it has none such."""
        for wrapped, bare in WRAPPED:
            spelt = module.replace(wrapped, bare, 1) if module.startswith(wrapped) else module
            name = self._map.get_name(f"{spelt}.weight", try_suffixes=(".weight",))
            if name not in (None, TOKENS) and len(self._shapes.get(name, ())) == 2:
                return str(name)
        return None


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if isinstance(value, int | float) and is_number else None


def _matches(name: str, module: str) -> bool:
    """As PEFT matches a name with a module's: the whole, or its end after a dot."""
    return module == name or module.endswith("." + name)
