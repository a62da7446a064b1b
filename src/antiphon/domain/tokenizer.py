"""What clients that tokenize by this server want to know of a model's tokenizer."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """One model's tokenizer."""

    context_length: int
    controls: Mapping[int, str]
    """Control tokens by id."""
    bos: str | None = None
    """The begin token, as text; None where the model has none."""
    eos: str | None = None
    """The end token."""
    add_bos: bool = False
    """Whether a raw prompt gets the begin token."""
    chat_template: str | None = None
    """The source of the model's chat template."""
