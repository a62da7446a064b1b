"""Reads the facts of a folder of weights: config.json, generation_config.json, tokenizer_config.json and the
chat template. It reads no weights and imports no library."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from antiphon.domain.request import SamplingOptions
from antiphon.domain.values import Struct
from antiphon.errors import ModelFileError
from antiphon.regular_files import open_regular, read_text

WEIGHTS = "*.safetensors"
CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
GENERATION_CONFIG, TEMPLATE = "generation_config.json", "chat_template.jinja"

MAX_BYTES = 64 * 1024 * 1024
"""The most bytes of one JSON file. The largest tokenizers have about 35 MB."""

GENERATIVE = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
"""The endings of the names of architectures that generate text."""

DTYPE_BYTES: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}


class ModelFolder(Struct, frozen=True):
    """A folder of weights, as Hugging Face's libraries save it."""

    path: Path
    architecture: str
    context_length: int
    """The context length that the model was trained for, in tokens."""
    size: int
    """Bytes of the files of weights."""
    parameters: int
    """The number of weights."""
    dtype: str
    """The number format of the weights; float32 if the configuration names no known one."""
    end_ids: tuple[int, ...]
    """The end-of-generation tokens."""
    sampling: SamplingOptions
    """The recommended sampling values."""
    chat_template: str | None
    values_per_token: int | None
    """The number of values that a plain KV cache stores for each token; None if the configuration does not
    tell it."""


def read_folder(path: Path) -> ModelFolder:
    """Reads the facts of a folder. Raises ModelFileError, which names the missing or broken file."""
    if not path.is_dir():
        raise ModelFileError(
            f"{path} is no folder; vLLM serves a folder with {CONFIG}, {TOKENIZER} and {WEIGHTS}"
        )
    for pattern in (CONFIG, TOKENIZER, WEIGHTS):
        if not any(path.glob(pattern)):
            raise ModelFileError(f"{path} has no {pattern}; vLLM serves a folder that has it")
    config = _read_json(path / CONFIG)
    text_config = config.get("text_config")
    config = {**config, **text_config} if isinstance(text_config, dict) else config
    generation = _read_json(path / GENERATION_CONFIG)
    _require_generative(path, config.get("architectures"))
    return ModelFolder(
        path=path,
        architecture=str(config.get("model_type", "unknown")),
        context_length=_read_count(config, "max_position_embeddings") or 2048,
        size=sum(file.stat().st_size for file in path.glob(WEIGHTS)),
        parameters=sum(map(_count_parameters, path.glob(WEIGHTS))),
        dtype=_read_dtype(config),
        end_ids=tuple(dict.fromkeys([*_list_ids(generation), *_list_ids(config)])),
        sampling=_read_sampling(generation),
        chat_template=_read_template(path),
        values_per_token=_count_values_per_token(config),
    )


def _require_generative(path: Path, architectures: object) -> None:
    """Raises ModelFileError for a model that does not make tokens."""
    names = [str(name) for name in architectures] if isinstance(architectures, list) else []
    if not any(name.endswith(GENERATIVE) for name in names):
        architecture_names = ", ".join(names) or "no architecture"
        raise ModelFileError(
            f"{path.name} cannot be served by vLLM here: it names {architecture_names}, which makes no "
            "text; convert an embedding model to GGUF"
        )


def read_tokenizer_config(path: Path) -> dict[str, object]:
    """Reads tokenizer_config.json. Returns an empty object if there is no such file. Raises
    ModelFileError."""
    return _read_json(path / TOKENIZER_CONFIG)


def _read_json(path: Path) -> dict[str, object]:
    """Reads a JSON object from a file. Returns an empty one if there is no such file. Raises
    ModelFileError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelFileError(f"{path} has more than {MAX_BYTES:,} bytes")
        with open_regular(path) as file:
            value = json.loads(file.read())
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise ModelFileError(f"cannot read {path}: {problem.strerror}") from None
    except (ValueError, RecursionError):
        raise ModelFileError(f"{path} is no valid JSON") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} holds no JSON object")
    return value


def _count_parameters(path: Path) -> int:
    """Counts the weights of one file by its header. Raises ModelFileError."""
    try:
        with open_regular(path) as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, MAX_BYTES)))
        return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except OSError as problem:
        raise ModelFileError(f"cannot read {path}: {problem.strerror}") from None
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        raise ModelFileError(f"{path} is no file of safetensors") from None


def _read_count(config: Mapping[str, object], name: str) -> int:
    """Reads a positive integer; 0 if there is none."""
    value = config.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _read_dtype(config: Mapping[str, object]) -> str:
    """Reads the number format of the weights."""
    value = config.get("dtype") or config.get("torch_dtype")
    return value if isinstance(value, str) and value in DTYPE_BYTES else "float32"


def _list_ids(config: Mapping[str, object]) -> Iterator[int]:
    """Yields the end tokens of a configuration."""
    value = config.get("eos_token_id")
    for token_id in value if isinstance(value, list) else [value]:
        if isinstance(token_id, int):
            yield token_id


def _read_sampling(generation: Mapping[str, object]) -> SamplingOptions:
    """Reads the recommended sampling values that a request may use."""

    def read_value(name: str, maximum: float) -> float | None:
        value = generation.get(name)
        return float(value) if isinstance(value, int | float) and 0 <= value <= maximum else None

    return SamplingOptions(
        temperature=read_value("temperature", 2.0),
        top_p=read_value("top_p", 1.0),
        top_k=_read_count(generation, "top_k") or None,
        min_p=read_value("min_p", 1.0),
    )


def _read_template(path: Path) -> str | None:
    """Reads the chat template. Raises ModelFileError."""
    try:
        return read_text(path / TEMPLATE)
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError):
        raise ModelFileError(f"cannot read {path / TEMPLATE} as UTF-8") from None
    template = read_tokenizer_config(path).get("chat_template")
    if isinstance(template, list):  # several templates, each with a name
        templates = {
            entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)
        }
        template = templates.get("default")
    return template if isinstance(template, str) else None


def _count_values_per_token(config: Mapping[str, object]) -> int | None:
    """Counts the values that a plain KV cache stores for each token: the keys and values of all layers."""
    layers, heads = _read_count(config, "num_hidden_layers"), _read_count(config, "num_attention_heads")
    head_width = _read_count(config, "head_dim") or (
        _read_count(config, "hidden_size") // heads if heads else 0
    )
    kv_heads = _read_count(config, "num_key_value_heads") or heads
    return 2 * layers * kv_heads * head_width or None
