"""The HTTP process as the supervisor starts it, without any engine."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.assembly.app_state import build_adapters, build_app_state, build_summary_cache
from antiphon.assembly.models import ModelSources, build_models
from antiphon.domain.context import Context
from antiphon.domain.request import GenerationRequest, Output, RawPrompt
from antiphon.engines.base import EngineState
from antiphon.engines.host.control import HttpConfig, Status
from antiphon.errors import SettingsError, UnsupportedParameter
from antiphon.pipeline.adapters import AdapterRequest
from antiphon.processes.ipc import from_line, to_line
from antiphon.settings.models import LoraSettings, ModelSettings
from antiphon.settings.schema import EngineSettings, MemorySettings, Settings, encode_settings
from antiphon.store.database import Database
from antiphon_testing import FakeClock, ScriptedTokenEngine, flatten
from antiphon_testing.rules import open_stream
from benchmarks.make_model import SIZES, write_model
from tests.support.lora_server import write_peft
from tests.support.model_files import write_encoder

PATIENCE = 30.0
"""Seconds; what is waited for takes one or two."""


@contextmanager
def started(runtime: Path, sockets: dict[str, str]) -> Iterator[int]:
    """The process, ended when the context is; gives the end of its status pipe."""
    reading, writing = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "antiphon.assembly"],
            stdin=subprocess.PIPE,
            pass_fds=(writing, listener.fileno()),
        )
        os.close(writing)
        assert process.stdin is not None
        config = HttpConfig(listener.fileno(), writing, str(runtime), sockets)
        process.stdin.write(encode_settings(Settings()) + b"\n" + to_line(config))
        process.stdin.flush()
        late = threading.Timer(PATIENCE, process.kill)
        late.start()
        try:
            yield reading
        finally:
            late.cancel()
            process.kill()
            process.wait()
            process.stdin.close()
            os.close(reading)


class Hosted(ScriptedTokenEngine):
    """As if it were in a process of its own."""

    generation = 1

    def state(self) -> EngineState:
        return EngineState.READY

    def is_pending_reload(self, _: str) -> bool:
        return False

    def request_load(self) -> None: ...

    def require_connection(self) -> None: ...

    def note_adapters(self, _: object) -> None: ...

    def note_refused(self, _: str, __: str) -> None: ...


@pytest.mark.parametrize(("sharing", "shared"), [("project", False), ("server", True)])
async def test_a_setting_says_whether_projects_share_prefixes(sharing: Any, shared: bool) -> None:
    host = Hosted()
    hosts: Any = {"m": host}
    engine = (
        build_models(
            ModelSources(Settings(engine=EngineSettings(prefix_sharing=sharing)), hosts), FakeClock()
        )
        .get("m")
        .engine
    )
    request = GenerationRequest("m", (RawPrompt("Hello"),), output=Output(max_tokens=1))
    async with open_stream(engine, request, Context("r")) as events:
        assert [event async for event in flatten(events)]
    assert (host.requests[0].cache_salt == "") is shared


async def test_a_model_with_a_projector_needs_what_decodes_images() -> None:
    settings = Settings(models=(ModelSettings("owl", "owl.gguf", mmproj="eyes.gguf"),))
    hosts: Any = {"owl": Hosted()}
    with pytest.raises(SettingsError, match=r"the model owl has mmproj.*EXTRAS=media"):
        build_models(ModelSources(settings, hosts), FakeClock())


async def test_an_embedding_model_is_no_home_of_adapters(tmp_path: Path) -> None:
    """One that generates beside it is the only one then, and needs not be named."""
    encoder = write_encoder(tmp_path / "encoder.gguf")
    base = write_model(tmp_path / "base.gguf", SIZES["tiny"], "f32")
    settings = Settings(
        models=(ModelSettings("m", str(base)), ModelSettings("enc", str(encoder))),
        lora=LoraSettings(directories=(str(tmp_path),), registry=str(tmp_path / "registry")),
    )
    hosts: Any = {"m": Hosted(), "enc": Hosted()}
    clock = FakeClock()
    adapters = build_adapters(
        hosts, build_app_state(settings, build_models(ModelSources(settings, hosts), clock), clock), settings
    )
    write_peft(tmp_path / "pirate", base)
    await adapters.load(AdapterRequest("pirate", "pirate"))
    assert len(hosts["m"].adapters.paths) == 1
    with pytest.raises(UnsupportedParameter, match="enc takes no adapters") as refused:
        await adapters.load(AdapterRequest("other", "pirate", "enc"))
    assert refused.value.param == "base_model_name"


@pytest.mark.timeout(PATIENCE + 10)
def test_it_goes_on_showing_that_it_lives(tmp_path: Path) -> None:
    """The supervisor ends a process that promised signs of life and falls silent."""
    assert sorted(said(tmp_path, {})) == ["alive", "alive", "ready"]


@pytest.mark.timeout(PATIENCE + 10)
def test_it_is_not_ready_before_it_reaches_its_engines(tmp_path: Path) -> None:
    """Else a first request, sent as soon as the panel is shown, finds none."""
    assert said(tmp_path, {"m": str(tmp_path / "no-host.sock")}) == ["alive", "alive", "alive"]


def said(runtime: Path, sockets: dict[str, str]) -> list[str]:
    """The first three reports."""
    with started(runtime, sockets) as reports, os.fdopen(os.dup(reports), "rb") as lines:
        return [from_line(lines.readline(), Status).state for _ in range(3)]


async def test_settings_of_summaries_reach_the_cache_in_memory():
    clock = FakeClock()
    cache = build_summary_cache(MemorySettings(summaries=2, summary_days=3), clock, None)
    for digest in "abc":
        await cache.save("one", digest, digest, 0)
    assert await cache.find("one", ["a", "b", "c"]) == {"b": "b", "c": "c"}
    clock.advance(3 * 86_400 - 1)
    assert await cache.find("one", ["c"]) == {"c": "c"}
    clock.advance(2)
    assert await cache.find("one", ["c"]) == {}


async def test_settings_of_summaries_reach_the_database(tmp_path: Path):
    database = Database(f"sqlite:///{tmp_path}/antiphon.db")
    database.prepare()
    clock = FakeClock()
    managed: Any = SimpleNamespace(database=database)  # the only part that is read
    cache = build_summary_cache(MemorySettings(summaries=2, summary_days=3), clock, managed)
    for at, digest in enumerate("abc"):
        await cache.save("default", digest, digest, at)
    assert await cache.find("default", ["a", "b", "c"]) == {"b": "b", "c": "c"}
    clock.advance(3 * 86_400 + 1)
    assert await cache.find("default", ["c"]) == {}
    database.close()
