"""Reads and checks a request's sampling fields, end user and tags."""

from collections.abc import Mapping

from antiphon.dialects.base import NO_ATTRIBUTION, Attribution
from antiphon.dialects.common.request_types import INT32_MAX, LARGEST_BIAS, LONGEST_TAG, CommonRequest
from antiphon.dialects.common.strict_json import describe_value, sanitize_key
from antiphon.domain.sampling import Mirostat, SamplingOptions
from antiphon.errors import InvalidValue


def read_sampling(wire: CommonRequest, max_tokens: int | None) -> SamplingOptions:
    """Reads the sampling options of a request. Raises InvalidValue."""
    if wire.min_tokens is not None and max_tokens is not None and wire.min_tokens > max_tokens:
        raise InvalidValue(
            f"min_tokens must be at most max_tokens, which is {max_tokens}; got {wire.min_tokens}",
            param="min_tokens",
        )
    return SamplingOptions(
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=None if wire.top_k is None else max(0, wire.top_k),
        min_p=wire.min_p,
        seed=wire.seed,
        typical_p=wire.typical_p,
        repetition_penalty=wire.repetition_penalty,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        logit_bias=None if wire.logit_bias is None else _read_biases(wire.logit_bias),
        mirostat=_read_mirostat(wire),
        min_tokens=wire.min_tokens,
        ignore_eos=wire.ignore_eos,
        allowed_token_ids=None
        if wire.allowed_token_ids is None
        else tuple(dict.fromkeys(wire.allowed_token_ids)),
    )


def _read_mirostat(wire: CommonRequest) -> Mirostat | None:
    """Reads the options of Mirostat; None if it is off. Mirostat is on if either field is sent, and the other
    field then has its default."""
    if wire.mirostat_target is None and wire.mirostat_lr is None:
        return None
    defaults = Mirostat()
    return Mirostat(
        defaults.target if wire.mirostat_target is None else wire.mirostat_target,
        defaults.rate if wire.mirostat_lr is None else wire.mirostat_lr,
    )


def _read_biases(biases: dict[str, float]) -> tuple[tuple[int, float], ...]:
    """Returns the biases by token id. Raises InvalidValue."""
    return tuple((_parse_token_id(key), _require_bias(key, value)) for key, value in biases.items())


def _parse_token_id(key: str) -> int:
    """Returns the token id of a key. Raises InvalidValue unless the key is the shortest spelling, so that two
    keys never mean the same id."""
    is_number = key.isascii() and key.isdigit() and len(key) <= len(str(INT32_MAX))
    if not is_number or str(int(key)) != key:
        raise InvalidValue(
            "logit_bias must have token ids as its keys, written as texts of digits; /tokenize shows them",
            param=f"logit_bias.{sanitize_key(key)}",
        )
    return int(key)


def _require_bias(key: str, value: float) -> float:
    """Returns the bias. Raises InvalidValue if it is out of range."""
    if not -LARGEST_BIAS <= value <= LARGEST_BIAS:
        raise InvalidValue(
            f"logit_bias.{key} must be a number of -100 to 100; got {describe_value(value)}",
            param=f"logit_bias.{key}",
        )
    return value


NUL = "\0"
"""The character that some databases cannot store."""


def read_attribution(
    user: str | None, tags: Mapping[str, str] | None = None, safety_identifier: str | None = None
) -> Attribution:
    """Reads the end user, which can have two names, and the tags. Raises InvalidValue that names the wrong
    field."""
    if user is None and not tags and safety_identifier is None:
        return NO_ATTRIBUTION
    if safety_identifier is not None and user is not None and safety_identifier != user:
        raise InvalidValue("user and safety_identifier differ; send one of them", param="safety_identifier")
    values_by_field = {"user": user, "safety_identifier": safety_identifier}
    user_fields = tuple(name for name, value in values_by_field.items() if value is not None)
    for name in user_fields:
        require_no_nul(name, values_by_field[name] or "")
    for name, value in (tags or {}).items():
        if not 0 < len(name) <= LONGEST_TAG:
            raise InvalidValue(
                f"metadata must have keys of 1 to {LONGEST_TAG} characters; got {len(name)}", param="metadata"
            )
        require_no_nul("metadata", name + value)
    reported_fields = (*user_fields, "metadata") if tags else user_fields
    return Attribution((safety_identifier if user is None else user) or None, tags or {}, reported_fields)


def require_no_nul(name: str, text: str) -> None:
    """Raises InvalidValue if the text contains NUL."""
    if NUL in text:
        raise InvalidValue(f"{name} must hold no NUL character", param=name)
