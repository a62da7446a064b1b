"""A renderer over the scripted token engine, and what it answers."""

from antiphon.domain.collect import collect
from antiphon.domain.context import Context
from antiphon.domain.request import GenerationRequest, Output, RawPrompt, SamplingOptions
from antiphon.rendering.renderer import Renderer, RendererOptions
from antiphon.rendering.template.request_template import TemplateHelper
from antiphon_testing import Script, ScriptedTokenEngine, flatten
from antiphon_testing.rules import open_stream
from tests.support.chat_templates import prove_here

GREEDY = SamplingOptions(temperature=0.0)


def renderer(script=None, *, projects_share=False, helper=None, **changes):
    """One that takes templates from callers, and renders them in the sandbox or with this helper."""
    engine = ScriptedTokenEngine(script or Script(), **changes)
    options = RendererOptions(projects_share, helper=helper or TemplateHelper())
    return Renderer(engine, prove=prove_here, options=options), engine


def asking(*prompts, sampling=GREEDY, cache_salt="", **output):
    return GenerationRequest("m", prompts or (RawPrompt("Hello"),), sampling, Output(**output), cache_salt)


async def events_of(engine, request, context=None):
    async with open_stream(engine, request, context or Context("r")) as events:
        return [event async for event in flatten(events)]


async def answer(engine, request, context=None):
    async with open_stream(engine, request, context or Context("r")) as events:
        return await collect(events)
