"""A LoRA adapter as it is served: facts of its file. Its name is the model's; what names there can be is said
here."""

import re
from dataclasses import dataclass

LONGEST_NAME = 200
"""Characters of a name, as of a model's."""

ADAPTER_NAME = re.compile(rf"(?!.*/\.{{0,2}}(?:/|\Z))[A-Za-z0-9][A-Za-z0-9._:/-]{{0,{LONGEST_NAME - 1}}}")
"""Such names can be said in a log, a label, a path of an address and a terminal without being quoted; no
client or proxy makes another of them on the way, as they do of `a/../b`."""

ADAPTER_NAME_RULE = (
    f"at most {LONGEST_NAME} letters, digits and characters of ._:/-, begin with a letter or digit, and hold "
    "no empty, . or .. part between slashes"
)
"""The same in words, after `must be`."""


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
