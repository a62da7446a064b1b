"""The list of models has what a key can call, also where the key allows a part of a pattern."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.auth.base import RequestedScope
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.tenancy import Grant
from antiphon.engines.registry import Model, ModelPattern, ModelRegistry, ModelRoute
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import ScriptedEngine
from tests.support.http_server import CHAT, HELLO, Served, serving_edge

ROUTES = (ModelRoute(ScriptedEngine()),)


class GrantVerifier:
    """Takes each key as a service key of the models that it names."""

    async def verify(self, token: str, scope: RequestedScope) -> Actor:
        return Actor(ActorKind.SERVICE_KEY, "key", grant=Grant(models=tuple(token.split(","))))


def build_pattern(name: str) -> ModelPattern:
    return ModelPattern(Model(name, ROUTES, 7), lambda full, rest: Model(full, ROUTES, 7))


@asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    patterns = (build_pattern("first/*"), build_pattern("first/deep/*"))
    models = ModelRegistry((Model("m", ROUTES, 7), Model("first/m", ROUTES, 7)), patterns=patterns)
    metrics = Metrics()
    pipeline = Pipeline(models, metrics, 0.0)
    edge = AppState(pipeline, models, OpenAI(), ServerSettings(), (GrantVerifier(),), metrics=metrics)
    async with serving_edge(edge) as (port, connections):
        yield Served(port, ScriptedEngine(), edge, connections)


@pytest.mark.parametrize(
    ("allowed", "listed"),
    [
        ("*", ["m", "first/m", "first/*", "first/deep/*"]),
        ("first/*", ["first/m", "first/*", "first/deep/*"]),
        ("first/ok*", ["first/ok*"]),
        ("first/ok", ["first/ok"]),
        ("first/m", ["first/m"]),
        ("first/deep/a*", ["first/deep/a*"]),
        ("f*-mini", ["first/deep/*-mini", "first/*-mini"]),
        ("m,first/a,first/b*", ["m", "first/a", "first/b*"]),
        ("second/*,first/," + "first/" + "x" * 300, []),
    ],
)
async def test_a_key_lists_what_it_can_call(allowed: str, listed: list[str]) -> None:
    async with serving() as served:
        headers = {"authorization": f"Bearer {allowed}"}
        reply = await served.ask("/v1/models", headers=headers)
        assert [each["id"] for each in reply.json()["data"]] == listed
        for name in listed:
            body = HELLO | {"model": name.replace("*", "7")}
            assert (await served.ask(CHAT, body, headers=headers)).status == 200
