"""A gateway in the test's process, whose models are a vendor's, and an openai client of it."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import openai

from antiphon.dialects.messages.dialect import Messages
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.dialects.responses.dialect import Responses
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.engines.vendors.base import UpstreamDialect, VendorModel
from antiphon.engines.vendors.engine import VendorEngine
from antiphon.engines.vendors.profiles import build_profile
from antiphon.engines.vendors.provider import Provider, ProviderOptions
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import ScriptedEngine
from tests.support.http_server import Served, serving_edge


@asynccontextmanager
async def serve_gateway(
    upstream: UpstreamDialect, base_url: str, key: str, models: Iterable[VendorModel]
) -> AsyncIterator[Served]:
    """Runs a gateway to these models of one provider, with OpenAI's API, Responses and Messages.
    `Served.engine` is unused."""
    vendor_models = tuple(models)
    name = vendor_models[0].provider
    options = ProviderOptions(name, base_url, upstream.credential_header, allows_private=True)
    provider = Provider(options, upstream, lambda: key)
    registry = ModelRegistry(tuple(build_model(provider, model) for model in vendor_models))
    pipeline = Pipeline(registry, Metrics(), restart_patience=0.0)
    others = (Responses(), Messages())
    edge = AppState(pipeline, registry, OpenAI(), ServerSettings(), prefixed_dialects=others)
    try:
        async with serving_edge(edge) as (port, connections):
            yield Served(port, ScriptedEngine(), edge, connections)
    finally:
        await provider.aclose()


@asynccontextmanager
async def connect_client(
    upstream: UpstreamDialect, base_url: str, key: str, models: Iterable[VendorModel]
) -> AsyncIterator[openai.AsyncOpenAI]:
    """Runs a gateway to these models of one provider, and yields a client of it."""
    async with (
        serve_gateway(upstream, base_url, key, models) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def build_model(provider: Provider, model: VendorModel) -> Model:
    """Builds the gateway's model of a vendor's model."""
    profile = build_profile(model.profile, model.provider, "vendor", model.refused_parameters)
    return Model(model.name, (ModelRoute(VendorEngine(provider, model, profile)),), 1)
