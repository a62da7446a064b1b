"""The renderer with predictions: what reaches the engine, what counts, and who refuses them."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from antiphon.domain.collect import collect
from antiphon.domain.context import Context
from antiphon.domain.events import Usage
from antiphon.domain.request import (
    GenerationRequest,
    Output,
    Prediction,
    RawPrompt,
    SamplingOptions,
    VendorOptions,
)
from antiphon.domain.values import replace
from antiphon.engines.base import Steps, TextPiece, TokenEvent, TokenRequest
from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.rendering.renderer import Renderer, RendererOptions
from antiphon_testing import Script, ScriptedTokenEngine, build_vocabulary, scripted_info
from antiphon_testing.rules import open_stream
from tests.support.chat_templates import prove_here

CONTEXT = 64
PROMPT = RawPrompt("Hello")


class Drafting(ScriptedTokenEngine):
    """Says that of each Steps all tokens but the last were predicted, and three others were not."""

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        async with aclosing(super().generate(request)) as events:
            async for event in events:
                is_drafted = isinstance(event, Steps) and request.prediction
                if is_drafted and isinstance(event, Steps):
                    yield replace(event, predicted=len(event.tokens) - 1, mispredicted=3)
                else:
                    yield event


def make(
    text: str = "one two three", takes: bool = True, charges: bool = False
) -> tuple[Renderer, ScriptedTokenEngine]:
    info = scripted_info(context_length=CONTEXT, takes_predictions=takes)
    engine = Drafting(Script(text=text, burst=4), info=info)
    return Renderer(engine, prove=prove_here, options=RendererOptions(charges_predictions=charges)), engine


def ask(prediction: Prediction | None, **output: Any) -> GenerationRequest:
    options = VendorOptions(prediction=prediction)
    sampling = SamplingOptions(temperature=0.0)
    return GenerationRequest("m", (PROMPT,), sampling, Output(**output), vendor_options=options)


async def read_usage(renderer: Renderer, request: GenerationRequest) -> Usage:
    async with open_stream(renderer, request, Context("r")) as events:
        return (await collect(events)).usage


async def test_the_engine_gets_tokens_without_a_begin_token_for_each_choice() -> None:
    renderer, engine = make()
    expected = engine.tokenizer.encode([TextPiece("one two")], False)
    await read_usage(renderer, ask(Prediction("one two"), max_tokens=3, choices=2))
    assert [request.prediction for request in engine.requests] == [expected, expected]
    await read_usage(renderer, ask(Prediction("", (7, 8), "speculation"), max_tokens=3))
    assert engine.requests[-1].prediction == (7, 8)
    await read_usage(renderer, ask(Prediction(""), max_tokens=3))
    assert [len(request.prediction) for request in engine.requests[-1:]] == [0]


async def test_a_space_that_the_tokenizer_adds_is_not_doubled() -> None:
    """An answer that begins with a space is predicted by its own tokens."""
    table = build_vocabulary(space_prefix=True)
    engine = ScriptedTokenEngine(info=scripted_info(takes_predictions=True), vocabulary=table)
    renderer = Renderer(engine, prove=prove_here)
    for text in (" one two", "one two"):
        await read_usage(renderer, ask(Prediction(text), max_tokens=3))
    assert engine.requests[0].prediction == engine.requests[1].prediction
    assert b"".join(table.pieces[token] for token in engine.requests[0].prediction) == b" one two"


async def test_text_in_a_prediction_is_no_control_token() -> None:
    renderer, engine = make()
    name = next(iter(engine.table.names.values()))
    await read_usage(renderer, ask(Prediction(name), max_tokens=3))
    assert not set(engine.requests[-1].prediction) & set(engine.table.names)


@pytest.mark.parametrize("charges", [False, True])
async def test_accepted_and_rejected_tokens_are_counted(charges: bool) -> None:
    renderer, _ = make(charges=charges)
    plain = await read_usage(renderer, ask(None, max_tokens=8))
    prediction = Prediction("", (7,) * 20)
    usage = await read_usage(renderer, ask(prediction, max_tokens=8))
    assert (usage.accepted_prediction_tokens, usage.rejected_prediction_tokens) == (6, 6)
    assert usage.completion_tokens == plain.completion_tokens + (6 if charges else 0)
    size = (await renderer.prepare(ask(prediction, max_tokens=8, choices=2), Context("r"))).size
    assert size.output_tokens == 2 * (8 + (20 if charges else 0)), "the bound of what can be charged"


async def test_no_more_is_rejected_than_was_predicted() -> None:
    renderer, _ = make(charges=True)
    usage = await read_usage(renderer, ask(Prediction("", (7,) * 7), max_tokens=8))
    assert (usage.accepted_prediction_tokens, usage.rejected_prediction_tokens) == (6, 1)


@pytest.mark.parametrize("logprobs", [None, 0])
async def test_tokens_behind_a_stop_text_are_not_accepted(logprobs: int | None) -> None:
    renderer, _ = make()
    prediction = Prediction("", (7,) * 20)
    usage = await read_usage(renderer, ask(prediction, max_tokens=8, stop=("o",), logprobs=logprobs))
    assert usage.completion_tokens == usage.accepted_prediction_tokens == 1


async def test_tokens_that_no_context_holds_are_cut_and_named() -> None:
    renderer, engine = make()
    for prediction, named in (
        (Prediction("a" * 500), "prediction[64:]"),
        (Prediction("", (7,) * 65, "speculation"), "speculation[64:]"),
    ):
        context = Context("r")
        prepared = await renderer.prepare(ask(prediction, max_tokens=2), context)
        async with prepared.stream(context) as events:
            await collect(events)
        assert prepared.report.ignored == (named,)
        assert len(engine.requests[-1].prediction) == CONTEXT
    prepared = await renderer.prepare(ask(Prediction("", (7,) * 64)), Context("r"))
    assert prepared.report.ignored == ()


async def test_an_impossible_prediction_is_refused_before_any_token() -> None:
    renderer, engine = make()
    for prediction in (Prediction("", (1 << 20,), "speculation"), Prediction("\ud800")):
        with pytest.raises(InvalidValue) as refused:
            await renderer.prepare(ask(prediction), Context("r"))
        assert refused.value.param == prediction.field
    assert engine.requests == []


async def test_a_model_that_takes_none_refuses_it_and_its_profile_says_so() -> None:
    renderer, engine = make(takes=False)
    assert (await renderer.profile()).refused == ("prediction",)
    for field in ("prediction", "speculation"):
        with pytest.raises(UnsupportedParameter) as refused:
            await renderer.prepare(ask(Prediction("a", field=field)), Context("r"))
        assert refused.value.param == field and engine.requests == []
    assert (await make()[0].profile()).refused == ()
