"""Reads the memory strategy of a request, whose parameters have two possible layouts."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from antiphon.dialects.common.request_types import MemoryParameters, MemoryShape
from antiphon.domain.memory import (
    MEMORY_FIELD,
    LastMessages,
    LastTokens,
    MemoryStrategy,
    RelevantTurns,
    Summary,
)
from antiphon.errors import InvalidValue, MissingParameter

LAST_K, LAST_TOKENS, SUMMARY, RELEVANT = "last_k", "last_tokens", "summary", "relevant"


PARAMETERS: Mapping[str, tuple[str, ...]] = {
    LAST_K: ("k",),
    LAST_TOKENS: ("tokens",),
    SUMMARY: ("tokens", "model"),
    RELEVANT: ("tokens", "model"),
}
"""The parameters of each strategy."""


T = TypeVar("T")


def read_memory(wire: MemoryShape) -> MemoryStrategy:
    """Returns the strategy. Without a name, `k` means last_k, `model` means summary, and only `tokens` means
    last_tokens. Raises MissingParameter, and InvalidValue for a parameter that the strategy does not have."""
    parameters, path = _choose_layout(wire)
    names = _list_present(parameters)
    name = wire.name or _guess_name(names)
    for parameter in names:
        if parameter not in PARAMETERS[name]:
            raise InvalidValue(
                f"{path}.{parameter} does not belong to the strategy {name}, which takes "
                f"{' and '.join(PARAMETERS[name])}; leave it out",
                param=f"{path}.{parameter}",
            )
    if name == SUMMARY:
        return Summary(parameters.tokens, parameters.model, path)
    if name == RELEVANT:
        return RelevantTurns(parameters.tokens, _require(parameters.model, f"{path}.model", name), path)
    if name == LAST_K:
        return LastMessages(_require(parameters.k, f"{path}.k", name), path)
    return LastTokens(_require(parameters.tokens, f"{path}.tokens", name), path)


def _choose_layout(wire: MemoryShape) -> tuple[MemoryParameters, str]:
    """Returns the object with the parameters, and its path. Raises InvalidValue if both objects have
    parameters."""
    if wire.params is None:
        return wire, MEMORY_FIELD
    if not _list_present(wire):
        return wire.params, f"{MEMORY_FIELD}.params"
    if not _list_present(wire.params):
        return wire, MEMORY_FIELD
    raise InvalidValue(
        f"send the parameters in {MEMORY_FIELD} or in {MEMORY_FIELD}.params, not in both",
        param=f"{MEMORY_FIELD}.params",
    )


def _list_present(parameters: MemoryParameters) -> list[str]:
    """Returns the names of the parameters in the request."""
    return [name for name in ("k", "tokens", "model") if getattr(parameters, name) is not None]


def _guess_name(names: Sequence[str]) -> str:
    """Returns the strategy that fits the parameters. Raises MissingParameter without parameters."""
    if not names:
        raise MissingParameter(
            f"{MEMORY_FIELD}.name is missing; send {LAST_K}, {LAST_TOKENS}, {SUMMARY} or {RELEVANT}",
            param=f"{MEMORY_FIELD}.name",
        )
    if "k" in names:
        return LAST_K
    return SUMMARY if "model" in names else LAST_TOKENS


def _require(value: T | None, path: str, name: str) -> T:
    """Returns the value of a parameter that the strategy needs. Raises MissingParameter."""
    if value is None:
        raise MissingParameter(f"{path} is missing: the strategy {name} needs it", param=path)
    return value
