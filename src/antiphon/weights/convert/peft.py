"""Converts a LoRA adapter from PEFT's files.

It reads adapter_config.json and adapter_model.safetensors. The formats contain only values; nothing in them
is executed. It writes llama.cpp's GGUF, or for vLLM one safetensors file with the configuration in the
metadata.

The header of the base model determines the tensor names, the order of rows and the required shapes. An option
that the output cannot express is refused by name, never ignored. PEFT scales a module by alpha/r (or
alpha/sqrt(r)). llama.cpp scales by alpha/r, with one alpha for all modules. The B matrices are multiplied by
the ratio of the two scales.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from antiphon.domain.values import Struct, field
from antiphon.errors import ModelFileError
from antiphon.weights.convert.tensors import Tensor, read_json, read_tensors
from antiphon.weights.gguf import Header

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

REORDERED = frozenset({"llama", "granite", "smollm3"})
"""Architectures for which llama.cpp stores query and key rows in another order than transformers. RoPE pairs
neighbouring rows in llama.cpp, and rows of the two halves of a head in transformers. Mistral's models have
the architecture `llama`."""

SAME_ORDER = frozenset({"qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "olmo2"})
"""Architectures for which llama.cpp and transformers store the rows in the same order."""

PREFIX = "base_model.model."
TEXT_MODEL_PREFIXES = (("", ""), ("model.language_model.", "model."), ("language_model.model.", "model."))
"""Prefixes of the text model's modules in a multimodal model, and the prefix in a text model."""

EMBEDDING_TENSOR = "token_embd.weight"
"""The embeddings. llama.cpp reads single rows and multiplies by no matrix, so it cannot apply an adapter."""

PLAIN_NAME = re.compile(r"[\w.]+")
"""A plain module name. PEFT also accepts regular expressions, but a hostile one could run forever."""

KINDS: Mapping[str, type[np.float32] | type[np.float16]] = {"F32": np.float32, "F16": np.float16}

EMBEDDING = ".lora_embedding_"
MATRIX = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])(\.default)?\.weight")

UNUSED_VALUES: tuple[object, ...] = (None, False, [], {})
"""Values of a key in adapter_config.json that mean "not used"."""

UNSUPPORTED = frozenset(
    """
    bias use_dora lora_bias fan_in_fan_out modules_to_save layer_replication trainable_token_indices
    target_parameters megatron_config use_qalora alora_invocation_tokens kasa_config monteclora_config
    use_bdlora arrow_config
    """.split()
)
"""Keys of PEFT features that a GGUF adapter cannot express: it has only two matrices for each module."""

SUPPORTED = frozenset(
    """
    peft_type task_type auto_mapping peft_version base_model_name_or_path revision inference_mode
    r target_modules exclude_modules lora_alpha lora_dropout use_rslora init_lora_weights
    layers_to_transform layers_pattern rank_pattern alpha_pattern megatron_core
    loftq_config eva_config corda_config lora_ga_config velora_config qalora_group_size runtime_config
    ensure_weight_tying
    """.split()
)
"""Keys that are read here, follow from the matrices, or concern only the training."""

CHANGING_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initializations that also change the base model. Such an adapter fits only the changed base model."""


class MatrixPair(Struct):
    """The two matrices of one module: B (outputs, rank) times A (rank, inputs)."""

    a: Tensor | None = None
    b: Tensor | None = None


class LoraScaling(Struct, frozen=True):
    """The scaling options in adapter_config.json."""

    alpha: float
    is_rank_stabilized: bool
    """Whether the scale is alpha over the square root of the rank (rsLoRA)."""
    alphas: Mapping[str, float] = field(default_factory=dict)
    """The alphas of single modules, by the last parts of the modules' names."""

    def compute_factor(self, module: str, rank: int) -> float:
        """Returns the factor for B that makes llama.cpp's scale equal to PEFT's."""
        alpha = next(
            (value for pattern, value in self.alphas.items() if _matches_module(pattern, module)), self.alpha
        )
        return alpha / self.alpha * (math.sqrt(rank) if self.is_rank_stabilized else 1.0)


def is_peft(path: Path) -> bool:
    """Whether the directory contains an adapter that PEFT saved."""
    return (path / CONFIG).is_file()


def convert_peft(
    source: Path, base: Header, target: Path, kind: str = "F32", metadata: Mapping[str, str] | None = None
) -> None:
    """Converts the adapter in `source` to a GGUF adapter for the model `base`. Raises ModelFileError, and
    OSError if `target` cannot be written.

    `kind`: the type of the matrices, F32 or F16. `metadata`: further metadata for the file, by key.
    """
    reorder = _requires_reordering(base, source)
    config = read_config(source / CONFIG)
    pairs = read_pairs(source / WEIGHTS)
    tensors = dict(_build_tensors(pairs, config, base, reorder, source))
    write_adapter(target, base.architecture, config.alpha, tensors, kind, metadata or {})


def read_config(path: Path) -> LoraScaling:
    """Reads the configuration. Raises ModelFileError if it is not a LoRA that GGUF supports."""
    options = read_json(path)
    if options.get("peft_type") != "LORA":
        raise ModelFileError(f"{path} is of the type {options.get('peft_type')!r}; only LORA can be served")
    for key, value in options.items():
        if key not in SUPPORTED and value not in UNUSED_VALUES and (key, value) != ("bias", "none"):
            reason = "is not supported by llama.cpp's adapters" if key in UNSUPPORTED else "is unknown"
            raise ModelFileError(
                f"{path} has {key[:80]} = {json.dumps(value)[:80]}, which {reason}; merge the adapter "
                "into its base model and convert that"
            )
    initialization = options.get("init_lora_weights")
    if isinstance(initialization, str) and initialization.lower().startswith(CHANGING_BASE):
        raise ModelFileError(
            f"{path} was initialized with init_lora_weights = {initialization!r}, which changes the "
            "base model too; save it as a plain LoRA (PEFT's save_pretrained with "
            "path_initial_model_for_weight_conversion)"
        )
    alpha = _parse_finite(options.get("lora_alpha"))
    if alpha is None or alpha <= 0:
        raise ModelFileError(f"{path} needs a positive lora_alpha; it has {options.get('lora_alpha')!r}")
    alphas = options.get("alpha_pattern") or {}
    if not isinstance(alphas, dict) or None in map(_parse_finite, alphas.values()):
        raise ModelFileError(f"{path} has an alpha_pattern that is not a table of numbers")
    if invalid := next((name for name in alphas if not PLAIN_NAME.fullmatch(name)), None):
        raise ModelFileError(f"{path} has the alpha_pattern {invalid[:80]!r}; only names of modules are read")
    is_rank_stabilized = options.get("use_rslora", False)
    if not isinstance(is_rank_stabilized, bool):
        raise ModelFileError(
            f"{path} has use_rslora = {json.dumps(is_rank_stabilized)[:80]}; it must be true or false"
        )
    return LoraScaling(alpha, is_rank_stabilized, alphas)


def read_pairs(path: Path) -> dict[str, MatrixPair]:
    """Reads the matrices of each module, by transformers' module names. Raises ModelFileError."""
    pairs: dict[str, MatrixPair] = {}
    for name, values in read_tensors(path):
        if EMBEDDING in name:
            raise ModelFileError(
                f"{path} has {name[:120]}: adapters of embeddings are not supported; leave the embeddings "
                "out of target_modules, or merge the adapter into its base model and convert that"
            )
        match = MATRIX.fullmatch(name)
        if match is None or values.ndim != 2:
            raise ModelFileError(
                f"{path} has {name[:120]}, which is not a matrix lora_A or lora_B of a module"
            )
        pair = pairs.setdefault(match["module"].removeprefix(PREFIX), MatrixPair())
        setattr(pair, match["part"].lower(), values)
    if not pairs:
        raise ModelFileError(f"{path} has no matrices")
    return pairs


def write_adapter(
    target: Path,
    architecture: str,
    alpha: float,
    tensors: Mapping[str, Tensor],
    kind: str,
    metadata: Mapping[str, str],
) -> None:
    """Writes a GGUF adapter. Raises OSError."""
    import gguf

    writer = gguf.GGUFWriter(target, architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
    for key, value in sorted(metadata.items()):
        writer.add_string(key, value)
    for name, values in sorted(tensors.items()):
        writer.add_tensor(name, np.ascontiguousarray(values, dtype=KINDS[kind]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    written_bytes = writer.fout[-1].tell() if writer.fout else 0
    writer.close()
    if target.stat().st_size < written_bytes:  # numpy does not report that a full disk cut the last write
        raise OSError("the file could not be written completely")


def _requires_reordering(base: Header, source: Path) -> bool:
    """Whether query and key rows must be reordered for llama.cpp. Raises ModelFileError for an unknown
    architecture."""
    if base.architecture in REORDERED:
        return True
    if base.architecture in SAME_ORDER:
        return False
    architectures = ", ".join(sorted(REORDERED | SAME_ORDER))
    raise ModelFileError(
        f"{source} cannot be converted: the architecture {base.architecture} is not one of {architectures}; "
        "convert it with llama.cpp's convert_lora_to_gguf.py"
    )


def _build_tensors(
    pairs: Mapping[str, MatrixPair], config: LoraScaling, base: Header, reorder: bool, source: Path
) -> Iterator[tuple[str, Tensor]]:
    """Yields the names and values of the GGUF's tensors. Raises ModelFileError."""
    names = TensorNames(base)
    for module, pair in pairs.items():
        if pair.a is None or pair.b is None:
            raise ModelFileError(f"{source} has only one of the two matrices of {module}")
        name = names.find(module)
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
            b = pair.b * np.float32(config.compute_factor(module, pair.b.shape[1]))
        if not np.isfinite(b).all():
            raise ModelFileError(f"{source} scales {module} beyond the range of float32")
        if reorder and name.endswith(("attn_q.weight", "attn_k.weight")):
            b = reorder_rows(b, _compute_head_width(base, outputs))
        yield f"{name}.lora_a", pair.a
        yield f"{name}.lora_b", b


def reorder_rows(rows: Tensor, width: int) -> Tensor:
    """Reorders rows of queries or keys from transformers' order to llama.cpp's: in each head of `width` rows,
    the rows of the two halves alternate."""
    return rows.reshape(-1, 2, width // 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _compute_head_width(base: Header, outputs: int) -> int:
    """Returns the number of rows of one head. Raises ModelFileError if the header does not tell it."""
    width = base.get_integer("attention.key_length") or base.get_integer("embedding_length") // max(
        1, base.heads
    )
    if not base.heads or not width or width % 2 or outputs % width:
        raise ModelFileError(
            f"the header of {base.path.name} has no width of heads, so no adapter can be converted for it; "
            "convert it with llama.cpp's convert_lora_to_gguf.py"
        )
    return width


class TensorNames:
    """Maps transformers' module names to llama.cpp's tensor names, for one model."""

    def __init__(self, base: Header) -> None:
        import gguf

        architectures = [arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == base.architecture]
        self._map = gguf.get_tensor_name_map(architectures[0], base.layers)
        self._shapes = base.shapes

    def find(self, module: str) -> str | None:
        """Returns the name of the module's weight in the base model; None if the model has no such matrix."""
        for prefix, text_prefix in TEXT_MODEL_PREFIXES:
            base_module = module.replace(prefix, text_prefix, 1) if module.startswith(prefix) else module
            name = self._map.get_name(f"{base_module}.weight", try_suffixes=(".weight",))
            if name not in (None, EMBEDDING_TENSOR) and len(self._shapes.get(name, ())) == 2:
                return str(name)
        return None


def _parse_finite(value: object) -> float | None:
    """Returns a finite JSON number as a float; None for any other value."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if isinstance(value, int | float) and is_number else None


def _matches_module(pattern: str, module: str) -> bool:
    """Whether a pattern of PEFT is the module's name or its last parts."""
    return module == pattern or module.endswith("." + pattern)


ALPHA = "alpha"
"""The key of the original alpha in the metadata."""

EMBEDDINGS = ("embed_tokens", "lm_head")
"""Modules whose adapters are refused, because vLLM applies them in another way or not at all."""


def write_peft_file(source: Path, base: Path, target: Path) -> tuple[int, float]:
    """Writes the adapter in the folder `source`, for the weights in the folder `base`. Returns the largest
    rank and alpha. Raises ModelFileError, and OSError if `target` cannot be written."""
    from safetensors.numpy import save_file

    config = read_config(source / CONFIG)
    pairs = read_pairs(source / WEIGHTS)
    shapes = read_shapes(base)
    tensors: dict[str, Tensor] = {}
    for module, pair in pairs.items():
        a, b = _get_matrices(module, pair, shapes, (source, base))
        tensors[f"{PREFIX}{module}.lora_A.weight"] = np.ascontiguousarray(a)
        tensors[f"{PREFIX}{module}.lora_B.weight"] = multiply_scale(b, config, module, source)
    rank = max(pair.a.shape[0] for pair in pairs.values() if pair.a is not None)
    options = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,  # the scale is in B
        "target_modules": sorted({module.rpartition(".")[2] for module in pairs}),
        "bias": "none",
    }
    metadata = {CONFIG: json.dumps(options), ALPHA: repr(config.alpha)}
    save_file(tensors, target, metadata=metadata)
    return rank, config.alpha


def read_shapes(base: Path) -> dict[str, tuple[int, ...]]:
    """Reads the shapes of all weights in a folder. Raises ModelFileError."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(base.glob("*.safetensors")):
        try:
            with safe_open(path, "numpy") as file:
                names = list(file.keys())
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in names}
        except (SafetensorError, OSError) as problem:
            raise ModelFileError(f"{path} cannot be read: {problem}") from None
    return shapes


def read_peft_file(path: Path) -> tuple[int, float]:
    """Returns the largest rank and alpha from a file of `write_peft_file`. Raises ModelFileError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata()
        return int(json.loads(metadata[CONFIG])["r"]), float(metadata[ALPHA])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as problem:
        raise ModelFileError(f"{path} cannot be read: {problem}") from None


def multiply_scale(b: Tensor, config: LoraScaling, module: str, source: Path) -> Tensor:
    """Multiplies PEFT's scale into a B matrix. Raises ModelFileError."""
    rank = b.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = b * np.float32(config.compute_factor(module, rank) * config.alpha / rank)
    if not np.isfinite(scaled).all():
        raise ModelFileError(f"{source} scales {module} beyond the range of float32")
    return np.ascontiguousarray(scaled)


def _get_matrices(
    module: str, pair: MatrixPair, shapes: Mapping[str, tuple[int, ...]], paths: tuple[Path, Path]
) -> tuple[Tensor, Tensor]:
    """Returns the two matrices of a module. Raises ModelFileError if they do not fit the module's weight.
    `paths`: the adapter's and its base's, for errors."""
    source, base = paths
    if pair.a is None or pair.b is None:
        raise ModelFileError(f"{source} has only one of the two matrices of {module}")
    if module.rpartition(".")[2] in EMBEDDINGS:
        raise ModelFileError(
            f"{source} adapts {module}: adapters of embeddings are not supported; leave the embeddings out "
            "of target_modules, or merge the adapter into its base model"
        )
    shape = shapes.get(f"{module}.weight", ())
    if len(shape) != 2:
        raise ModelFileError(f"{source} adapts {module[:120]}, which {base.name} does not have")
    if (pair.b.shape[0], pair.a.shape[1]) != shape or pair.a.shape[0] != pair.b.shape[1]:
        raise ModelFileError(
            f"{source} adapts {module} with {pair.b.shape[0]}x{pair.b.shape[1]} times {pair.a.shape[0]}x"
            f"{pair.a.shape[1]}, but in {base.name} it is {shape[0]}x{shape[1]}; it was made for another "
            "model"
        )
    return pair.a, pair.b
