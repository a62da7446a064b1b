"""What the sampler inside vLLM needs to know of one sequence. vLLM carries it in `extra_args`."""

from dataclasses import dataclass

import msgspec

from antiphon.constraints.grammar_types import Grammar
from antiphon.domain.sampling import Sampling

ARGUMENT = "antiphon"
"""The name in `extra_args`."""


@dataclass(frozen=True, slots=True)
class RowRequest:
    """One sequence whose tokens Antiphon's sampler draws."""

    sequence: str
    """Its name, under which failures are reported."""
    sampling: Sampling
    choice: int
    ends: tuple[int, ...]
    """The model's end-of-generation tokens."""
    stops: tuple[int, ...]
    max_tokens: int
    grammar: Grammar | None = None
    """The checked grammar of its constraint."""
    field: str | None = None
    """The caller's name for the constraint."""

    def ends_with(self, token: int) -> bool:
        """Whether the token ends the sequence."""
        return token in self.stops or (token in self.ends and not self.sampling.ignore_eos)


def encode_row(row: RowRequest) -> bytes:
    return msgspec.msgpack.encode(row)


def decode_row(encoded: bytes) -> RowRequest:
    return msgspec.msgpack.decode(encoded, type=RowRequest)
