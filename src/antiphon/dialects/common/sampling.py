"""The sampling fields of a request, checked where a type alone cannot, as what the caller asked for."""

from antiphon.dialects.common.strict_json import kind, shown_key
from antiphon.dialects.common.wire import INT32_MAX, LARGEST_BIAS, CommonRequest
from antiphon.domain.sampling import AskedSampling, Mirostat
from antiphon.errors import InvalidValue


def asked_sampling(wire: CommonRequest, max_tokens: int | None) -> AskedSampling:
    """What was said about sampling. Raises InvalidValue."""
    if wire.min_tokens is not None and max_tokens is not None and wire.min_tokens > max_tokens:
        raise InvalidValue(
            f"min_tokens must be at most max_tokens, which is {max_tokens}; got {wire.min_tokens}",
            param="min_tokens",
        )
    return AskedSampling(
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=None if wire.top_k is None else max(0, wire.top_k),
        min_p=wire.min_p,
        seed=wire.seed,
        typical_p=wire.typical_p,
        repetition_penalty=wire.repetition_penalty,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        logit_bias=None if wire.logit_bias is None else _biases(wire.logit_bias),
        mirostat=_mirostat(wire),
        min_tokens=wire.min_tokens,
        ignore_eos=wire.ignore_eos,
        allowed_token_ids=None
        if wire.allowed_token_ids is None
        else tuple(dict.fromkeys(wire.allowed_token_ids)),
    )


def _mirostat(wire: CommonRequest) -> Mirostat | None:
    """On when either field is sent; the other has its default then."""
    if wire.mirostat_target is None and wire.mirostat_lr is None:
        return None
    usual = Mirostat()
    return Mirostat(
        usual.target if wire.mirostat_target is None else wire.mirostat_target,
        usual.rate if wire.mirostat_lr is None else wire.mirostat_lr,
    )


def _biases(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    return tuple((_token(key), _bias(key, value)) for key, value in given.items())


def _token(key: str) -> int:
    """The token id that a key says, in the one spelling that an id has, so that no two keys are one id."""
    plain = key.isascii() and key.isdigit() and len(key) <= len(str(INT32_MAX))
    if not plain or str(int(key)) != key:
        raise InvalidValue(
            "logit_bias must have token ids as its keys, written as texts of digits; /tokenize shows them",
            param=f"logit_bias.{shown_key(key)}",
        )
    return int(key)


def _bias(key: str, value: float) -> float:
    if not -LARGEST_BIAS <= value <= LARGEST_BIAS:
        raise InvalidValue(
            f"logit_bias.{key} must be a number of -100 to 100; got {kind(value)}", param=f"logit_bias.{key}"
        )
    return value
