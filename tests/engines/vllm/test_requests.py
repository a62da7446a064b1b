"""Which requests reach vLLM, and how they are translated for it."""

import pytest

from antiphon.domain.request import Constraint, ConstraintKind, Mirostat, Sampling
from antiphon.engines.base import PromptTokens, StopCause, TokenRequest
from antiphon.engines.vllm.rows import ARGUMENT, decode_row
from antiphon.engines.vllm.translation import (
    ModelLimits,
    build_parameters,
    find_stop_cause,
    require_valid_request,
)
from antiphon.errors import ContextLengthExceeded, InvalidValue

CPU = ModelLimits(context_length=20, vocabulary=100, end_ids=(2, 4), draws_all=True)
GPU = ModelLimits(context_length=20, vocabulary=100, end_ids=(2, 4), draws_all=False)
WARM = Sampling(temperature=0.7, seed=5)


COLD = Sampling(temperature=0.0)


def ask(tokens=(1, 7), max_tokens=5, sampling=COLD, **fields):
    return TokenRequest(PromptTokens(tokens), max_tokens, sampling, **fields)


def translate(request, limits=CPU):
    prompt = require_valid_request(request, limits)
    return build_parameters(request, "s", prompt, limits, None)


@pytest.mark.parametrize("token", [-1, 100, 2**31])
def test_an_unknown_id_never_reaches_vllm(token):
    for request in (
        ask(tokens=(1, token)),
        ask(sampling=Sampling(logit_bias=((token, 1.0),))),
        ask(sampling=Sampling(allowed_token_ids=(token,))),
        ask(sampling=Sampling(banned=((1, token),))),
        ask(logprobs=1, logprob_token_ids=(token,)),
    ):
        with pytest.raises(InvalidValue, match="no token id of this model"):
            translate(request)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"tokens": ()}, InvalidValue),
        ({"tokens": (1,) * 20}, ContextLengthExceeded),
        ({"max_tokens": 0}, InvalidValue),
        ({"logprobs": 101}, InvalidValue),
        ({"prompt_logprobs": -1}, InvalidValue),
        ({"sampling": Sampling(temperature=-1)}, InvalidValue),
        ({"sampling": Sampling(top_p=float("nan"))}, InvalidValue),
    ],
)
def test_an_impossible_request_never_reaches_vllm(fields, error):
    with pytest.raises(error):
        translate(ask(**fields))


def test_ends_are_stop_tokens_unless_they_are_ignored():
    assert translate(ask(stop_token_ids=(9, 4, 500)))["stop_token_ids"] == [9, 4, 2]
    ignoring = ask(stop_token_ids=(9,), sampling=Sampling(temperature=0, ignore_eos=True))
    assert translate(ignoring)["stop_token_ids"] == [9]
    assert translate(ignoring)["ignore_eos"] is True is translate(ask())["ignore_eos"]


def test_tokens_are_limited_by_the_context():
    assert translate(ask(max_tokens=1000))["max_tokens"] == 18
    assert translate(ask(tokens=(1,) * 19, max_tokens=9))["max_tokens"] == 1
    assert translate(ask(max_tokens=0, prompt_logprobs=2))["max_tokens"] == 1


def test_the_likeliest_token_needs_no_own_sampler():
    for sampling in (Sampling(temperature=0), Sampling(temperature=1.5, top_k=1)):
        for limits in (CPU, GPU):
            parameters = translate(ask(sampling=sampling), limits)
            assert parameters["temperature"] == 0.0 and "extra_args" not in parameters


def test_a_processor_draws_with_antiphons_sampler():
    request = ask(sampling=WARM, choice=3, stop_token_ids=(9,))
    parameters = translate(request)
    row = decode_row(parameters["extra_args"][ARGUMENT])
    assert parameters["temperature"] == 0.0
    assert (row.sequence, row.sampling, row.choice) == ("s", WARM, 3)
    assert (row.end_ids, row.stop_ids, row.max_tokens) == ((2, 4), (9,), 5)


def test_a_gpu_leaves_to_vllm_what_it_draws_alike():
    sampling = Sampling(
        0.7,
        0.9,
        5,
        0.1,
        2**64 - 1,
        repetition_penalty=1.1,
        frequency_penalty=0.5,
        logit_bias=((7, 1.0), (7, 2.0)),
    )
    parameters = translate(ask(sampling=sampling), GPU)
    assert "extra_args" not in parameters
    assert (parameters["temperature"], parameters["top_p"], parameters["top_k"]) == (0.7, 0.9, 5)
    assert parameters["logit_bias"] == {7: 3.0}
    assert 0 <= parameters["seed"] < 2**63
    other = translate(ask(sampling=sampling, choice=1), GPU)
    assert other["seed"] != parameters["seed"]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(mirostat=Mirostat()),
        Sampling(typical_p=0.5),
        Sampling(min_tokens=2),
        Sampling(allowed_token_ids=(7,)),
        Sampling(banned=((7,),)),
        Sampling(top_p=0.0),
        Sampling(temperature=0.001),
        Sampling(temperature=2.5),
        Sampling(presence_penalty=3.0),
        Sampling(frequency_penalty=-3.0),
        Sampling(logit_bias=((7, -1000.0),)),
    ],
)
def test_a_gpu_draws_with_antiphons_sampler_what_vllm_lacks(sampling):
    assert ARGUMENT in translate(ask(sampling=sampling), GPU)["extra_args"]


def test_a_constraint_needs_antiphons_sampler():
    request = ask(constraint=Constraint(ConstraintKind.REGEX, "a+"))
    assert ARGUMENT in translate(request, GPU)["extra_args"]
    with pytest.raises(InvalidValue, match="ignore_eos"):
        translate(ask(constraint=request.constraint, sampling=Sampling(ignore_eos=True)))


def test_listed_tokens_are_chosen_from_all():
    assert translate(ask())["logprobs"] is None
    assert translate(ask(logprobs=3))["logprobs"] == 3
    assert translate(ask(logprobs=3, logprob_token_ids=(1,)))["logprobs"] == 100


def test_the_last_token_says_why_a_sequence_ended():
    assert find_stop_cause(ask(), 2, CPU) is StopCause.END
    assert find_stop_cause(ask(stop_token_ids=(9,)), 9, CPU) is StopCause.STOP_TOKEN
    assert find_stop_cause(ask(), 7, CPU) is StopCause.LENGTH is find_stop_cause(ask(), None, CPU)
    ignoring = ask(stop_token_ids=(2,), sampling=Sampling(ignore_eos=True))
    assert find_stop_cause(ignoring, 2, CPU) is StopCause.STOP_TOKEN
