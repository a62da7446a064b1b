"""What a model can take and give, as data; published at /v1/models/{id}."""

from dataclasses import dataclass, field

from antiphon.domain.embedding import EmbeddingFacts
from antiphon.domain.sampling import SamplingOptions


@dataclass(frozen=True, slots=True)
class Profile:
    """Facts of one model as it is served now."""

    architecture: str
    """As the weights name it: `llama`, `qwen2`."""
    parameters: int
    """Number of weights."""
    size: int
    """Bytes of the weights."""
    quantization: str
    """`Q8_0`, `F16`, ..."""
    context_length: int
    """Tokens that prompt and completion of one choice may take together."""
    vocabulary: int
    """Number of token ids."""
    chat: bool
    """Whether the model carries a chat template that was proved safe."""
    exact: bool
    """Whether a sequence is bit-equal alone and in a batch."""
    sequences: int
    """Choices that run at once; more wait."""
    engine: str
    """Which engine serves it, with the library's version."""
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    """Defaults for what a request leaves out."""
    modalities: tuple[str, ...] = ("text",)
    reasoning: bool = False
    """Whether the chat template tells of reasoning, which is then given apart from what is said."""
    embedding: EmbeddingFacts | None = None
    """Of an embedding model; null: it generates."""
