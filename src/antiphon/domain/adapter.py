"""A LoRA adapter as it is served: facts of its file, and no name, which is the model's."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter that was checked against its base model."""

    digest: str
    """SHA-256 of its GGUF file, in hexadecimal; engines know it by this."""
    path: str
    """Where that file lies; for engines, and told to no caller."""
    rank: int
    """The largest of its matrices'."""
    alpha: float
    size: int
    """Bytes of the file."""
