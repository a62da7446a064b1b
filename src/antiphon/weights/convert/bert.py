"""Converts a BERT encoder from the files of transformers and sentence-transformers to GGUF.

It reads config.json, model.safetensors and the WordPiece vocabulary (vocab.txt or tokenizer.json). It also
reads tokenizer_config.json and the pooling and maximum length of sentence-transformers, if they exist. It
refuses every option that llama.cpp would compute differently from transformers, by name. Import it only for a
conversion: gguf takes half a second to import.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from antiphon.domain.values import Struct
from antiphon.errors import ModelFileError
from antiphon.weights.convert.tensors import Tensor, read_json, read_list, read_tensors, read_text

KINDS = ("F32", "F16", "Q8_0")

BLOCK = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q8_0][0]
"""Q8_0 needs matrices whose number of columns is a multiple of this. Other matrices stay F16."""

UNUSED = re.compile(r"(.*\.)?(embeddings\.position_ids|pooler\.dense\..*)|cls\..*")
"""Tensors that embedding does not use."""

FLOAT32_MATRICES = ("position_embd.weight", "token_types.weight")
"""Matrices that stay float32, because their rows are added and not multiplied."""

SPACE = "\u2581"
"""GGUF's mark of a piece at the start of a word."""

LAYER = re.compile(r"(?:bert\.)?encoder\.layer\.(\d+)\.")
"""The prefix of the names of a layer's tensors."""

OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
"""Endings of the names of norms in checkpoints from TensorFlow, and today's endings."""

MODULES = ("Transformer", "Pooling", "Normalize")
"""Modules of sentence-transformers that a GGUF encoder can replace. The engine always normalises its
vectors."""

NAMES = gguf.Keys.Tokenizer
SPECIAL: Mapping[str, tuple[str, ...]] = {
    "[CLS]": (NAMES.BOS_ID, "tokenizer.ggml.cls_token_id"),  # llama.cpp puts it before a text
    "[SEP]": (NAMES.EOS_ID, NAMES.SEP_ID),
    "[PAD]": (NAMES.PAD_ID,),
    "[MASK]": (NAMES.MASK_ID,),
    "[UNK]": (NAMES.UNK_ID,),
}
"""Special tokens, and the GGUF keys of their ids."""

LAYER_TENSORS = (
    *("attn_q", "attn_k", "attn_v", "attn_output", "attn_output_norm"),
    *("ffn_up", "ffn_down", "layer_output_norm"),
)
"""The tensors of each layer. Each has a weight and a bias."""
EMBEDDINGS = frozenset({"token_embd.weight", "position_embd.weight", "token_types.weight"})

SUPPORTED_VALUES: Mapping[str, tuple[object, ...]] = {
    # key of config.json: the values that llama.cpp supports
    "model_type": ("bert",),
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
}


class WordPieceVocabulary(Struct, frozen=True):
    """The vocabulary, and the normalisation of texts before they are split into pieces."""

    pieces: tuple[str, ...]
    """The pieces in WordPiece's notation, by id."""
    lowercase: bool
    strip_accents: bool


class EncoderShape(Struct, frozen=True):
    """The sizes of an encoder."""

    vocabulary_size: int
    max_positions: int
    token_types: int
    """The number of token types."""
    hidden_size: int
    feed_forward_size: int
    layers: int
    """The number of layers."""
    heads: int
    """The number of attention heads in a layer."""
    epsilon: float
    """The number that layer norms add to the variance."""


def convert_bert(source: Path, target: Path, kind: str = "F16") -> None:
    """Converts the encoder in the directory `source` to GGUF. `kind`: the type of the matrices. Raises
    ModelFileError."""
    if kind not in KINDS:
        raise ModelFileError(f"an encoder is written as {' or '.join(KINDS)}, not as {kind}")
    config = read_json(source / "config.json")
    _require_supported_modules(source)
    for key, supported in SUPPORTED_VALUES.items():
        if config.get(key) not in supported:
            raise ModelFileError(
                f"{source} has {key} = {config.get(key)!r}; only {' or '.join(map(repr, supported))} is "
                "converted"
            )
    vocabulary = read_vocabulary(source)
    saved_tensors = dict(read_tensors(source / "model.safetensors", UNUSED))
    layers = len({match[1] for name in saved_tensors if (match := LAYER.match(name))})
    tensors = dict(_rename_tensors(saved_tensors, layers, source))
    shape = read_shape(config, tensors, layers, source)
    tensors["position_embd.weight"] = tensors["position_embd.weight"][: shape.max_positions]
    if len(vocabulary.pieces) != shape.vocabulary_size:
        raise ModelFileError(
            f"{source}: the vocabulary has {len(vocabulary.pieces)} pieces, but the embedding matrix has "
            f"{shape.vocabulary_size} rows"
        )
    _write(target, kind, shape, vocabulary, read_pooling(source), tensors)


def read_shape(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], layers: int, source: Path
) -> EncoderShape:
    """Returns the encoder's sizes from its tensors, and from config.json where the tensors do not tell them.
    Raises ModelFileError for a missing tensor, because llama.cpp would ignore a missing bias. llama.cpp
    itself refuses inconsistent sizes."""
    parts = [f"blk.{layer}.{part}" for layer in range(layers) for part in LAYER_TENSORS] + ["token_embd_norm"]
    needed_names = {f"{part}.{suffix}" for part in parts for suffix in ("weight", "bias")}
    if missing := sorted((needed_names | EMBEDDINGS) - tensors.keys()):
        raise ModelFileError(f"{source} has no {missing[0]}, which a BERT encoder must have")

    def get_matrix_shape(name: str) -> tuple[int, ...]:
        """Returns the shape of a matrix. Raises ModelFileError if the tensor is no matrix."""
        if tensors[name].ndim != 2:
            raise ModelFileError(f"{source} has {name}, which is not a matrix")
        return tensors[name].shape

    if not layers:
        raise ModelFileError(f"{source} has no layers")
    pieces, hidden = get_matrix_shape("token_embd.weight")
    heads, epsilon = config.get("num_attention_heads"), config.get("layer_norm_eps", 1e-12)
    if type(heads) is not int or heads < 1 or hidden % heads:
        raise ModelFileError(f"{source} has num_attention_heads = {heads!r:.80} for a width of {hidden}")
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:  # NaN fails this test too
        raise ModelFileError(f"{source} has layer_norm_eps = {epsilon!r:.80}; it must be between 0 and 1")
    positions, types = get_matrix_shape("position_embd.weight")[0], get_matrix_shape("token_types.weight")[0]
    positions = min(positions, read_max_tokens(source) or positions)
    inner = get_matrix_shape("blk.0.ffn_up.weight")[0]
    return EncoderShape(pieces, positions, types, hidden, inner, layers, heads, epsilon)


def read_vocabulary(source: Path) -> WordPieceVocabulary:
    """Reads the vocabulary and the normalisation of texts. Raises ModelFileError."""
    options = _read_json_if_present(source / "tokenizer_config.json")
    if (source / "tokenizer.json").is_file():
        return _read_tokenizer_json(read_json(source / "tokenizer.json"), source)
    if not (source / "vocab.txt").exists():
        raise ModelFileError(f"{source} has neither tokenizer.json nor vocab.txt")
    lines = read_text(source / "vocab.txt").splitlines()
    lowercase = bool(options.get("do_lower_case", True))
    accents = options.get("strip_accents")
    return WordPieceVocabulary(tuple(lines), lowercase, lowercase if accents is None else bool(accents))


def _read_tokenizer_json(tokenizer: dict[str, Any], source: Path) -> WordPieceVocabulary:
    """Reads the vocabulary from tokenizer.json. Raises ModelFileError if it is not BERT's WordPiece."""
    model, normalizer = _as_object(tokenizer.get("model")), _as_object(tokenizer.get("normalizer"))
    if model.get("type") != "WordPiece" or normalizer.get("type") != "BertNormalizer":
        raise ModelFileError(
            f"{source} has a tokenizer of the type {model.get('type')!r}; only BERT's WordPiece is converted"
        )
    ids = _as_object(model.get("vocab")) | _read_added_tokens(tokenizer.get("added_tokens"), source)
    if not all(type(number) is int for number in ids.values()):
        raise ModelFileError(f"{source} has a vocabulary whose ids are not all whole numbers")
    pieces = sorted(ids, key=lambda piece: ids[piece])
    if [ids[piece] for piece in pieces] != list(range(len(pieces))):
        raise ModelFileError(f"{source} has a vocabulary with gaps in its ids")
    lowercase = bool(normalizer.get("lowercase", True))
    accents = normalizer.get("strip_accents")
    return WordPieceVocabulary(tuple(pieces), lowercase, lowercase if accents is None else bool(accents))


def _as_object(value: object) -> dict[str, Any]:
    """Returns the value if it is a JSON object. Returns an empty object for any other value."""
    return value if isinstance(value, dict) else {}


def _read_added_tokens(value: object, source: Path) -> dict[str, object]:
    """Returns the ids of the tokens that tokenizer.json lists outside the vocabulary, keyed by text."""
    tokens = [_as_object(token) for token in value] if isinstance(value, list) else []
    if not all(isinstance(token.get("content"), str) for token in tokens):
        raise ModelFileError(f"{source} has added_tokens that are not all texts with an id")
    return {token["content"]: token.get("id") for token in tokens}


def read_pooling(source: Path) -> str:
    """Returns the pooling of sentence-transformers (`MEAN`, `CLS` or `LAST`); `MEAN` if it names none. Raises
    ModelFileError."""
    options = _read_json_if_present(source / "1_Pooling" / "config.json")
    modes = {
        "pooling_mode_mean_tokens": "MEAN",
        "pooling_mode_cls_token": "CLS",
        "pooling_mode_lasttoken": "LAST",
    }
    chosen = [key for key, value in options.items() if key.startswith("pooling_mode_") and value is True]
    if not options:
        return "MEAN"
    if len(chosen) != 1 or chosen[0] not in modes:
        raise ModelFileError(f"{source} pools by {' and '.join(chosen) or 'nothing'}, which is not supported")
    return modes[chosen[0]]


def read_max_tokens(source: Path) -> int | None:
    """Returns the number of tokens after which sentence-transformers cuts a text; None if it is not
    configured. Raises ModelFileError."""
    longest = _read_json_if_present(source / "sentence_bert_config.json").get("max_seq_length")
    if longest is not None and (type(longest) is not int or longest < 1):
        raise ModelFileError(f"{source} has max_seq_length = {longest!r:.80}; it must be a number of tokens")
    return longest


def _require_supported_modules(source: Path) -> None:
    """Raises ModelFileError for a module of sentence-transformers that GGUF does not support."""
    if not (source / "modules.json").is_file():
        return
    modules = read_list(source / "modules.json")
    kinds = [
        str(module.get("type")).rpartition(".")[2] if isinstance(module, dict) else "?" for module in modules
    ]
    unsupported = next((kind for kind in kinds if kind not in MODULES), None)
    if unsupported is not None:
        raise ModelFileError(
            f"{source} has the module {unsupported[:80]} of sentence-transformers, which a GGUF encoder "
            f"does not compute; only {', '.join(MODULES)} are converted"
        )


def to_gguf_piece(piece: str) -> str:
    """Converts a piece to GGUF's notation. GGUF marks the pieces at the start of a word. WordPiece marks all
    other pieces."""
    if piece.startswith("[") and piece.endswith("]"):
        return piece
    return piece[2:] if piece.startswith("##") else SPACE + piece


def _rename_tensors(tensors: Mapping[str, Tensor], layers: int, source: Path) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors under llama.cpp's names. Raises ModelFileError for an unknown tensor."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, layers)
    for name, values in tensors.items():
        hf_name = name.removeprefix("bert.")
        for old_ending, new_ending in OLD_NAMES.items():
            hf_name = (
                hf_name.removesuffix(old_ending) + new_ending if hf_name.endswith(old_ending) else hf_name
            )
        tensor_name = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        if tensor_name is None:
            raise ModelFileError(f"{source} has {name[:120]}, which a BERT encoder does not have")
        yield tensor_name, values


def _write(
    target: Path,
    kind: str,
    shape: EncoderShape,
    vocabulary: WordPieceVocabulary,
    pooling: str,
    tensors: Mapping[str, Tensor],
) -> None:
    """Writes the GGUF file."""
    writer = gguf.GGUFWriter(target, "bert")
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"])
    writer.add_context_length(shape.max_positions)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(shape.feed_forward_size)
    writer.add_block_count(shape.layers)
    writer.add_head_count(shape.heads)
    writer.add_token_type_count(shape.token_types)
    writer.add_layer_norm_eps(shape.epsilon)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType[pooling])
    _write_vocabulary(writer, vocabulary)
    for name, values in sorted(tensors.items()):
        tensor_type = gguf.GGMLQuantizationType[_choose_type(name, values, kind)]
        writer.add_tensor(
            name, gguf.quants.quantize(np.ascontiguousarray(values), tensor_type), raw_dtype=tensor_type
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _choose_type(name: str, values: Tensor, kind: str) -> str:
    """Returns the type in which a tensor is written."""
    if values.ndim != 2 or name in FLOAT32_MATRICES:
        return "F32"
    return "F16" if kind == "Q8_0" and values.shape[1] % BLOCK else kind


def _write_vocabulary(writer: Any, vocabulary: WordPieceVocabulary) -> None:  # noqa: ANN401 - gguf has no types
    """Writes the vocabulary and the ids of the special tokens. Raises ModelFileError for repeated or missing
    pieces."""
    writer.add_tokenizer_model("bert")
    pieces = [to_gguf_piece(piece) for piece in vocabulary.pieces]
    if len(set(pieces)) != len(pieces):
        repeated = next(piece for piece, count in Counter(pieces).items() if count > 1)
        raise ModelFileError(f"the vocabulary has the piece {repeated[:80]!r} twice")
    writer.add_token_list(pieces)
    kinds = gguf.TokenType
    writer.add_token_types(
        [kinds.CONTROL if piece in SPECIAL else kinds.NORMAL for piece in vocabulary.pieces]
    )
    writer.add_bool("tokenizer.ggml.normalizer.lowercase", vocabulary.lowercase)
    writer.add_bool("tokenizer.ggml.normalizer.strip_accents", vocabulary.strip_accents)
    ids = {piece: index for index, piece in enumerate(vocabulary.pieces)}
    for piece, keys in SPECIAL.items():
        if piece not in ids:
            raise ModelFileError(f"the vocabulary has no {piece}, which BERT needs")
        for key in keys:
            writer.add_uint32(key, ids[piece])


def _read_json_if_present(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
