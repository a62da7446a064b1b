"""/metrics: counts what was answered, asks engines, waits for none, and shows nothing of what callers say."""

import asyncio
import os

import pytest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.auth.keyring import SettingsKey
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.domain.models import Histogram, Load
from antiphon.domain.values import replace
from antiphon.engines.base import EngineState
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import EngineUnavailable
from antiphon.http.server_status import observe_engines
from antiphon.http.state import AppState, ServerFacts
from antiphon.pipeline.run import Pipeline
from antiphon.settings.server import ServerSettings
from antiphon.store.base import LAST_BACKUP
from antiphon.telemetry.exposition import Totals
from antiphon.telemetry.metrics import MAX_FIELDS, OTHER_FIELDS, Metrics
from antiphon_testing import ScriptedAnswer, ScriptedEngine
from tests.support.http_server import CHAT, HELLO, KEY, Served, serving, serving_edge
from tests.support.waiting import await_until

CANARY = "canary-prompt-7d1c"
LOAD = Load(queued=2, running=3, cells=100, first_token_seconds=Histogram((1,) + (0,) * 16, 0.0005))


class Observed(ScriptedEngine):
    """Says how busy it is, after a while or never."""

    def __init__(self, wait=0.0, error=None, **how):
        super().__init__(**how)
        self._wait = wait
        self._error = error

    async def observe(self):
        await asyncio.sleep(self._wait)
        if self._error is not None:
            raise self._error
        return LOAD


def models_of(**engines):
    return ModelRegistry(tuple(Model(name, (ModelRoute(engine),), 7) for name, engine in engines.items()))


@pytest.fixture
async def counted():
    """A server with a key, over an engine that can be observed and one that is starting."""
    models = models_of(m=Observed(), away=Observed(state=EngineState.STARTING), plain=ScriptedEngine())
    metrics = Metrics()
    edge = AppState(
        Pipeline(models, metrics, 0.0),
        models,
        OpenAI(),
        ServerSettings(),
        (SettingsKey(KEY),),
        metrics=metrics,
    )
    async with serving_edge(edge) as (port, connections):
        yield Served(port, ScriptedEngine(), edge, connections)


BEARER = {"authorization": f"Bearer {KEY}"}


async def scraped(server):
    reply = await server.ask("/metrics", headers=BEARER)
    assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    text = reply.body.decode()
    return text, {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_it_asks_for_the_key_like_every_route(counted):
    assert (await counted.ask("/metrics")).status == 401


async def test_what_was_answered_is_counted_by_route_model_and_status(counted):
    for body in (HELLO, HELLO | {"stream": True}, HELLO | {"model": "away"}, HELLO | {"model": CANARY}):
        await counted.ask(CHAT, body, headers=BEARER)
    await counted.ask("/health")
    await counted.ask("/v1/models/m", headers=BEARER)
    await counted.ask(f"/{CANARY}", headers=BEARER)
    await counted.ask("/metrics")
    text, found = await scraped(counted)
    requests = {key[1:]: value for key, value in found.items() if key[0] == "antiphon_http_requests_total"}
    assert requests == {
        (CHAT, "200"): 2,
        (CHAT, "503"): 1,
        (CHAT, "404"): 1,
        ("/health", "200"): 1,
        ("/v1/models/{model:path}", "200"): 1,
        ("other", "404"): 1,
        ("/metrics", "401"): 1,
    }
    assert found["antiphon_generations_total", "m", "ok"] == 2
    assert found["antiphon_generations_total", "away", "engine_unavailable"] == 1
    assert found["antiphon_tokens_total", "m", "output"] == 6
    assert found["antiphon_generation_first_token_seconds_count", "m"] == 2
    assert found["antiphon_http_request_seconds_count", CHAT] == 4
    assert CANARY not in text and KEY not in text and "anonymous" not in text


async def test_engines_are_told_by_model_and_those_away_as_not_up(counted):
    _, found = await scraped(counted)
    assert (found["antiphon_engine_queued", "m"], found["antiphon_engine_cells", "m"]) == (2, 100)
    assert found["antiphon_engine_first_token_seconds_count", "m"] == 1
    up = {key[1]: value for key, value in found.items() if key[0] == "antiphon_engine_up"}
    assert up == {"m": 1, "away": 0, "plain": 1}
    assert [key for key in found if key[0] == "antiphon_engine_queued"] == [("antiphon_engine_queued", "m")]


class Limits:
    available = False


class Lost:
    is_lost = True
    failure_count = 3


async def test_what_a_server_stands_on_is_told(tmp_path):
    """Its database, its limits, its disks, its backup and its processes."""
    (tmp_path / LAST_BACKUP).touch()
    os.utime(tmp_path / LAST_BACKUP, (1000, 1000))
    deaths: dict[tuple[str, ...], int] = {("engine", "m"): 2, ("http", ""): 0}
    directories = {"home": tmp_path, "knowledge": tmp_path / "not yet"}
    models = models_of(m=ScriptedEngine())
    edge = AppState(
        Pipeline(models, Metrics(), 0.0),
        models,
        OpenAI(),
        ServerSettings(),
        (SettingsKey(KEY),),
        limiter=Limits(),
        feed=Lost(),
        database=Lost(),
        facts=ServerFacts(77.5, tmp_path, directories, deaths),
    )
    async with serving_edge(edge) as (port, connections):
        server = Served(port, ScriptedEngine(), edge, connections)
        _, found = await scraped(server)
        (tmp_path / LAST_BACKUP).unlink()
        _, without_backup = await scraped(server)
    assert (found["antiphon_limits", "unavailable"], found["antiphon_limits", "available"]) == (1, 0)
    assert (found["antiphon_store", "lost"], found["antiphon_store", "followed"]) == (1, 0)
    assert found["antiphon_store_failures_total",] == 3
    assert found["antiphon_start_time_seconds",] == 77.5
    assert found["antiphon_process_deaths_total", "m", "engine"] == 2
    assert found["antiphon_process_deaths_total", "", "http"] == 0
    assert 0 < found["antiphon_disk_free_bytes", "home"] <= found["antiphon_disk_bytes", "home"]
    assert ("antiphon_disk_bytes", "knowledge") not in found
    assert found["antiphon_backup_time_seconds",] == 1000
    assert without_backup["antiphon_backup_time_seconds",] == 0


async def test_no_scrape_waits_for_an_engine_that_does_not_answer():
    asked: list[Observed] = []

    class Stuck(Observed):
        async def observe(self):
            asked.append(self)
            try:
                return await super().observe()
            except asyncio.CancelledError:
                assert len(asked) == 4, "all at once"
                raise

    engines = {f"stuck{index}": Stuck(wait=3600) for index in range(4)}
    broken = Observed(error=EngineUnavailable("gone"))
    seen = await observe_engines(models_of(**engines, broken=broken, well=Observed()), max_seconds=0.5)
    assert {name for name, each in seen.items() if each.is_up} == {"well"}
    assert seen["well"].load == LOAD


async def test_names_that_callers_make_up_are_no_labels(counted):
    for index in range(30):
        await counted.ask(f"/made/up/{index}", headers=BEARER)
        await counted.ask(f"/v1/models/made-up-{index}", headers=BEARER)
    before = len((await scraped(counted))[1])
    for index in range(30, 60):
        await counted.ask(f"/made/up/{index}", headers=BEARER)
        await counted.ask(CHAT, HELLO | {"model": f"made-up-{index}"}, headers=BEARER)
    text, found = await scraped(counted)
    assert "made/up" not in text and "made-up" not in text
    # new since: the counter and the buckets of the chat route and of this one
    assert len(found) - before <= 2 * (1 + 19)


async def test_the_load_is_the_generations_that_run_or_wait():
    gate = asyncio.Event()
    async with serving(ScriptedAnswer(gate=gate)) as served:
        assert (await served.ask("/load")).json() == {"server_load": 0}
        async with asyncio.TaskGroup() as group:
            for stream in (False, True):
                group.create_task(served.ask(CHAT, HELLO | {"stream": stream}))
            await await_until(lambda: len(served.engine.streams) >= 2)
            assert (await served.ask("/load")).json() == {"server_load": 2}
            gate.set()
        assert (await served.ask("/load")).json() == {"server_load": 0}


class OtherProcess:
    """What another process counts, as the coordinator tells it."""

    def __init__(self) -> None:
        self.totals = Totals()
        self.answers = True

    async def collect_totals(self) -> tuple[int, Totals]:
        return 1, self.totals

    async def ping(self) -> bool:
        return self.answers


async def test_numbers_are_those_of_all_processes():
    other = OtherProcess()
    async with serving() as served, serving_edge(replace(served.edge, coordinator=other)) as (port, _):
        own = replace(served, port=port)
        assert (await own.ask("/load")).json() == {"server_load": 0}
        served.edge.metrics.removed_models = ("gone",)
        busy = Metrics()
        busy.begin_generation(next(iter(served.edge.models)).name)
        for model in ("gone", "unloaded"):
            busy.count_embedding(model, "ok", 7, 0.1)
        other.totals = Totals.from_series(busy.list_series())
        assert (await own.ask("/load")).json() == {"server_load": 1}
        page = (await own.ask("/metrics")).body.decode()
        assert "antiphon_http_processes 2" in page
        assert 'antiphon_embeddings_total{model="gone",status="ok"} 1.0' in page, "a reload removed it"
        assert "unloaded" not in page, "callers name adapters"


async def test_a_process_without_its_coordinator_reports_not_ready():
    other = OtherProcess()
    async with serving() as served:
        shared = replace(served.edge, coordinator=other)
        async with serving_edge(replace(shared, keys_on=True)) as (port, _):
            own = replace(served, port=port)
            assert (await own.ask("/health/ready")).status == 200
            other.answers = False
            reply = await own.ask("/health/ready")
            assert reply.status == 503 and reply.headers["retry-after"]
            assert reply.json() == {"status": "unavailable", "coordinator": "unavailable"}
        async with serving_edge(shared) as (port, _):
            reply = await replace(served, port=port).ask("/health/ready")
            assert (reply.status, reply.json()) == (200, {"status": "ok", "coordinator": "unavailable"})


async def test_unknown_fields_of_agents_are_counted_by_names_up_to_a_bound():
    """Agents send new fields every few weeks; a caller can invent any number."""
    path, body = "/v1/responses", {"model": "m", "input": "Hi"}
    message = {"role": "user", "content": [{"type": "text", "text": "Hi", "tomorrow": 1}]}
    async with serving() as served:
        for _ in range(2):
            assert (await served.ask(path, body | {"a_new_field": 1})).status == 200
        messages = {"model": "m", "max_tokens": 8, "messages": [message]}
        assert (await served.ask("/v1/messages", messages)).status == 200
        odd = {CANARY: 1, "x" * 60: 1, "two words": 1}
        assert (await served.ask(path, body | odd)).status == 200
        for number in range(100):
            assert (await served.ask(path, body | {f"invented_{number}": 1})).status == 200
        page = (await served.ask("/metrics")).body.decode()
    (family,) = [
        family for family in text_string_to_metric_families(page) if family.name == "antiphon_unused_fields"
    ]
    counts = {(sample.labels["dialect"], sample.labels["field"]): sample.value for sample in family.samples}
    assert counts["responses", "a_new_field"] == 2
    assert counts["messages", "messages[].content[].tomorrow"] == 1
    assert counts["responses", "invented_0"] == 1
    assert counts["responses", OTHER_FIELDS] > 50 and len(counts) == MAX_FIELDS
    assert sum(counts.values()) == 2 + 1 + 3 + 100
    assert CANARY not in page
