"""Checks token requests, translates them for vLLM, and translates vLLM's outputs to events.

The values of outputs are read by attribute names, so this module does not import vLLM.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from antiphon.constraints.grammar_types import Grammar
from antiphon.domain.request import Sampling
from antiphon.domain.values import Struct
from antiphon.engines.base import PromptScores, Steps, StopCause, TokenRequest
from antiphon.engines.sampling import SamplingState
from antiphon.engines.sampling.sampling_state import hash_seed
from antiphon.engines.vllm.rows import ARGUMENT, RowRequest, encode_row
from antiphon.errors import ContextLengthExceeded, InvalidValue

LOWEST_TEMPERATURE = 0.01
"""vLLM raises a lower temperature to this one."""

HIGHEST_TEMPERATURE, MAX_PENALTY, MAX_BIAS = 2.0, 2.0, 100.0
"""The ranges that vLLM's own sampler accepts."""

SEED_BITS = 0x7FFFFFFFFFFFFFFF
"""vLLM accepts signed seeds of 64 bits."""


class ModelLimits(Struct, frozen=True):
    """The properties of the model that requests are checked against."""

    context_length: int
    vocabulary: int
    end_ids: tuple[int, ...]
    """The model's end-of-generation tokens."""
    draws_all: bool
    """Whether Antiphon's sampler draws all tokens that are not chosen greedily. This is off on a GPU, because
    the sampler needs the logits in the machine's memory: there it draws only tokens that vLLM's sampler would
    draw from another distribution."""


def require_valid_request(request: TokenRequest, limits: ModelLimits) -> tuple[int, ...]:
    """Returns the prompt. Raises a RequestError with the reason if the request is invalid. Some invalid
    requests would end vLLM."""
    prompt = request.prompt.ids
    require_known_tokens(prompt, limits.vocabulary)
    if not prompt:
        raise InvalidValue("the prompt has no tokens; give at least one", param="prompt")
    if len(prompt) >= limits.context_length:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {limits.context_length} tokens, one of which is the "
            f"answer's. However, your prompt has {len(prompt)} tokens. Please reduce the length of the "
            "prompt.",
            param="prompt",
        )
    if request.max_tokens < (0 if request.prompt_logprobs is not None else 1):
        raise InvalidValue(
            "max_tokens must be at least 1, or 0 to score the prompt alone", param="max_tokens"
        )
    for name in ("logprobs", "prompt_logprobs"):
        requested = getattr(request, name)
        if requested is not None and not 0 <= requested <= limits.vocabulary:
            raise InvalidValue(f"{name} must be from 0 to {limits.vocabulary}", param=name)
    if request.constraint is not None and request.sampling.ignore_eos:
        problem = "ignore_eos has no meaning together with a constraint; leave one of them out"
        raise InvalidValue(problem, param="ignore_eos")
    return prompt


def require_known_tokens(tokens: Sequence[int], vocabulary: int) -> None:
    """Raises InvalidValue if a token id is outside the vocabulary."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        unknown_token = min(tokens) if min(tokens) < 0 else max(tokens)
        problem = f"{unknown_token} is no token id of this model; its ids go from 0 to {vocabulary - 1}"
        raise InvalidValue(problem, param="prompt")


def count_max_output(request: TokenRequest, prompt: Sequence[int], limits: ModelLimits) -> int:
    """The most tokens that the sequence makes. vLLM makes at least one."""
    return max(1, min(request.max_tokens, limits.context_length - len(prompt)))


def needs_antiphon_sampler(request: TokenRequest, state: SamplingState, limits: ModelLimits) -> bool:
    """Whether Antiphon's sampler must draw the tokens. Greedy sampling of unchanged logits gives the same
    tokens in every sampler."""
    if request.constraint is None and state.is_greedy and not state.changes_logits:
        return False
    return limits.draws_all or request.constraint is not None or not is_drawn_alike(request.sampling)


def is_drawn_alike(sampling: Sampling) -> bool:
    """Whether vLLM's sampler draws from the same distribution as Antiphon's. Even then, equal seeds give
    different tokens."""
    differences = (
        sampling.mirostat is not None,
        sampling.typical_p < 1,
        sampling.min_tokens > 0,
        sampling.allowed_token_ids is not None,
        bool(sampling.banned),
        sampling.top_p == 0,
        not LOWEST_TEMPERATURE <= sampling.temperature <= HIGHEST_TEMPERATURE and sampling.temperature > 0,
        max(abs(sampling.presence_penalty), abs(sampling.frequency_penalty)) > MAX_PENALTY,
        any(abs(value) > MAX_BIAS for _, value in sampling.logit_bias),
    )
    return not any(differences)


def build_state(request: TokenRequest, prompt: Sequence[int], limits: ModelLimits) -> SamplingState:
    """Builds the sampling state, which checks all sampling values. Raises InvalidValue."""
    return SamplingState(
        request.sampling,
        request.choice,
        None,
        prompt=prompt,
        end_tokens=limits.end_ids,
        stop_tokens=request.stop_token_ids,
        vocabulary_size=limits.vocabulary,
        listed_tokens=request.logprob_token_ids,
    )


def build_parameters(
    request: TokenRequest, sequence: str, prompt: Sequence[int], limits: ModelLimits, grammar: Grammar | None
) -> dict[str, object]:
    """Builds the arguments of vLLM's SamplingParams. Their stop tokens include the end tokens, since vLLM is
    told to ignore its own. `sequence`: its name for reports of failures. Raises InvalidValue."""
    state, max_tokens = build_state(request, prompt, limits), count_max_output(request, prompt, limits)
    end_ids = () if request.sampling.ignore_eos else limits.end_ids
    stop_ids = tuple(dict.fromkeys((*request.stop_token_ids, *end_ids)))
    parameters: dict[str, object] = {
        "max_tokens": max_tokens,
        "stop_token_ids": [token for token in stop_ids if 0 <= token < limits.vocabulary],
        "ignore_eos": True,
        "logprobs": count_alternatives(request, limits),
        "prompt_logprobs": request.prompt_logprobs,
        "detokenize": False,
        "temperature": 0.0,
    }
    if needs_antiphon_sampler(request, state, limits):
        row_request = RowRequest(
            sequence=sequence,
            sampling=request.sampling,
            choice=request.choice,
            end_ids=limits.end_ids,
            stop_ids=request.stop_token_ids,
            max_tokens=max_tokens,
            grammar=grammar,
            field=request.constraint.field if request.constraint is not None else None,
        )
        return parameters | {"extra_args": {ARGUMENT: encode_row(row_request)}}
    if state.is_greedy and not state.changes_logits:
        return parameters
    return parameters | _build_vllm_options(request)


def _build_vllm_options(request: TokenRequest) -> dict[str, object]:
    """The options of vLLM's own sampler."""
    sampling = request.sampling
    biases: dict[int, float] = {}
    for token, value in sampling.logit_bias:
        biases[token] = biases.get(token, 0.0) + value
    return {
        "temperature": 0.0 if sampling.top_k == 1 else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": hash_seed(sampling.seed, request.choice) & SEED_BITS,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": biases or None,
    }


def count_alternatives(request: TokenRequest, limits: ModelLimits) -> int | None:
    """The number of likeliest tokens that vLLM must report with each token; None for no log-probabilities. If
    the request lists tokens, vLLM must report all, because vLLM's own option for such a list would also
    change the alternatives of other sequences in the batch."""
    if request.logprobs is None:
        return None
    return limits.vocabulary if request.logprob_token_ids else request.logprobs


def find_stop_cause(request: TokenRequest, last_token: int | None, limits: ModelLimits) -> StopCause:
    """Returns the cause of a sequence's end, by its last token."""
    if last_token is not None and last_token in limits.end_ids and not request.sampling.ignore_eos:
        return StopCause.END
    return StopCause.STOP_TOKEN if last_token in request.stop_token_ids else StopCause.LENGTH


class VllmLogprob(Protocol):
    """A log-probability with its rank."""

    logprob: float
    rank: int | None


Logprobs = Mapping[int, VllmLogprob]
"""The log-probabilities at one position: of the token there, and of the likeliest tokens."""

LOWEST = -3.4028234663852886e38
"""The lowest finite float32, for impossible tokens: JSON has no infinity."""


def build_steps(tokens: Sequence[int], logprobs: Sequence[Logprobs] | None, request: TokenRequest) -> Steps:
    """Builds the event of new tokens."""
    if request.logprobs is None or logprobs is None:
        return Steps(tuple(tokens))
    rows = list(zip(tokens, logprobs, strict=True))
    values = tuple(clamp_logprob(row[token]) for token, row in rows)
    if request.logprob_token_ids:
        listed_ids = request.logprob_token_ids
        return Steps(
            tuple(tokens),
            values,
            tuple(
                tuple((token_id, clamp_logprob(row[token_id])) for token_id in listed_ids) for _, row in rows
            ),
        )
    count = request.logprobs
    return Steps(tuple(tokens), values, tuple(list_best(token, row, count) for token, row in rows))


def clamp_logprob(entry: VllmLogprob) -> float:
    """Returns a log-probability, at least LOWEST."""
    return max(float(entry.logprob), LOWEST)


def list_best(token: int, row: Logprobs, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` likeliest tokens of a position, best first. `token`: the token at the position. vLLM
    reports it too, so it is left out if it is not among the likeliest."""
    entries = [(token_id, clamp_logprob(entry)) for token_id, entry in row.items()]
    if len(entries) > count:
        entries = [entry for entry in entries if entry[0] != token]
    return tuple(sorted(entries, key=lambda entry: (-entry[1], entry[0]))[:count])


def build_scores(prompt: Sequence[int], rows: Sequence[Logprobs | None], count: int) -> PromptScores | None:
    """Builds the scores of a prompt; None for a prompt of one token. vLLM reports no score for the first
    token."""
    scored_tokens = [(token, row) for token, row in zip(prompt, rows, strict=True) if row is not None]
    if not scored_tokens:
        return None
    likeliest = [list_best(token, row, count) for token, row in scored_tokens]
    return PromptScores(
        start=1,
        logprobs=_pack("f", (clamp_logprob(row[token]) for token, row in scored_tokens)),
        alternative_ids=_pack("i", (token for row in likeliest for token, _ in row)),
        alternative_logprobs=_pack("f", (value for row in likeliest for _, value in row)),
        ranks=_pack("i", (row[token].rank or 1 for token, row in scored_tokens)),
    )


def _pack(type_code: str, values: Iterable[float]) -> bytes:
    """Packs numbers of four bytes, little-endian."""
    number_list = list(values)
    return struct.pack(f"<{len(number_list)}{type_code}", *number_list)
