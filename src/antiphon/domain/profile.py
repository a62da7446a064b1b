"""The capabilities of a model, and its tokenizer, as data; published at /v1/models/{id}."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from antiphon.domain.embedding import EmbeddingFacts
from antiphon.domain.sampling import SamplingOptions


@dataclass(frozen=True, slots=True)
class Profile:
    """Facts of one model as it is served now."""

    architecture: str
    """The architecture in the weights: `llama`, `qwen2`."""
    parameters: int
    """Number of weights."""
    size: int
    """Bytes of the weights."""
    quantization: str
    """`Q8_0`, `F16`, ..."""
    context_length: int
    """Tokens of the prompt and completion of one choice together."""
    vocabulary: int
    """Number of token ids."""
    chat: bool
    """Whether the model has a chat template that passed its proof."""
    exact: bool
    """Whether a sequence is bit-equal alone and in a batch."""
    sequences: int
    """Choices that run at once; others wait."""
    engine: str
    """Its engine, with the library's version."""
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    """Defaults for fields that a request leaves out."""
    modalities: tuple[str, ...] = ("text",)
    reasoning: bool = False
    """Whether the chat template marks reasoning, which then comes apart from the text."""
    embedding: EmbeddingFacts | None = None
    """For an embedding model; None for one that generates."""


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """A model's tokenizer, for clients that tokenize with this server."""

    context_length: int
    controls: Mapping[int, str]
    """Control tokens by id."""
    bos: str | None = None
    """The begin token as text; None where the model has none."""
    eos: str | None = None
    """The end token."""
    add_bos: bool = False
    """Whether a raw prompt gets the begin token."""
    chat_template: str | None = None
    """The source of the model's chat template."""
