"""Two servers for the real client: the product as it ships, with cantor, and the same edge over a scripted
engine.

What any server must do is asked of both. What a model cannot be made to do (fail midway, never begin) is
asked of the scripted one, whose engine obeys the words of the last message.
"""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import openai
import pytest
import uvloop

from antiphon.assembly.dialects import create_dialects
from antiphon.auth.base import TokenVerifier
from antiphon.auth.keyring import SettingsKey
from antiphon.dialects.base import DialectOptions
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import AntiphonError, EngineDied, EngineUnavailable, Overloaded
from antiphon.http.application import create_app
from antiphon.http.server import Server as HttpServer
from antiphon.http.state import AppState
from antiphon.pipeline.rules import Accounting
from antiphon.pipeline.run import Pipeline
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import ScriptedAnswer, ScriptedEngine
from tests.contract.clients import stop_clients
from tests.e2e.furnished import Place, furnished
from tests.support.knowledge_tables import fill_table
from tests.support.model_files import write_encoder, write_reranker
from tests.support.server import Server, serving

KEY = "canary-key-4f1d0c8e55"


@dataclass(frozen=True)
class Target:
    """A server that a client may be pointed at."""

    url: str
    model: str

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


@dataclass(frozen=True)
class Scripted(Target):
    """The one whose engine can be looked at."""

    engine: ScriptedEngine


class Script:
    """What the scripted engine does when it is told to in words."""

    def __init__(self) -> None:
        self._failed: set[str] = set()

    def __call__(self, request: GenerationRequest) -> ScriptedAnswer:
        words = _last_words(request)
        answers = {
            "die midway": ScriptedAnswer(
                error=EngineDied("the engine's process ended"), error_after=2, pace=0.02
            ),
            "die once": ScriptedAnswer(
                error=EngineDied("the engine's process ended"), error_after=1, pace=None
            ),
            "be busy": ScriptedAnswer(error=Overloaded("the queue is full", retry_after=7)),
            "be away": ScriptedAnswer(error=EngineUnavailable("the model is restarting", retry_after=1)),
            "begin late": ScriptedAnswer(wait=1.2),
            "never end": ScriptedAnswer(endless=True, pace=0.01),
        }
        if words.startswith("never begin"):
            return ScriptedAnswer(wait=3600)
        if words.startswith("be away once"):
            return self._once(words, EngineUnavailable("the model is restarting", retry_after=0.1))
        return answers.get(words, ScriptedAnswer(("Hello", " wor", "ld, ", "héllo 😀", "!")))

    def _once(self, words: str, error: AntiphonError) -> ScriptedAnswer:
        if words in self._failed:
            return ScriptedAnswer()
        self._failed.add(words)
        return ScriptedAnswer(error=error)


def _last_words(request: GenerationRequest) -> str:
    prompt = request.prompts[-1]
    return prompt.messages[-1].text if isinstance(prompt, Conversation) else prompt.text or ""


@contextmanager
def scripted_server(key: str | None = None, accounting: Accounting | None = None) -> Iterator[Scripted]:
    """The edge over a scripted engine, in a thread with a loop of its own."""
    with serve_engine(ScriptedEngine(Script()), key, accounting) as target:
        yield target


@contextmanager
def serve_engine(
    engine: ScriptedEngine, key: str | None = None, accounting: Accounting | None = None
) -> Iterator[Scripted]:
    """The edge over this engine."""
    models = ModelRegistry(
        (
            Model("scripted", (ModelRoute(engine),), 1_700_000_000),
            Model("org/scripted", (ModelRoute(engine),), 1_700_000_000),
        )
    )
    verifiers: tuple[TokenVerifier, ...] = (SettingsKey(key),) if key else ()
    pipeline = Pipeline(models, Metrics(), restart_patience=0.0, accounting=accounting)
    settings = ServerSettings(drain_timeout=0, keep_alive_interval=0.5)
    dialect, *others = create_dialects(DialectOptions())
    edge = AppState(pipeline, models, dialect, settings, verifiers, prefixed_dialects=tuple(others))
    ready = threading.Event()
    server = HttpServer(create_app(edge), edge, ready.set)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        loop = uvloop.new_event_loop()

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(server.serve(listener))

        thread = threading.Thread(target=run)
        thread.start()
        assert ready.wait(60)
        try:
            yield Scripted(f"http://127.0.0.1:{port}", "scripted", engine)
        finally:
            loop.call_soon_threadsafe(server.stop)
            thread.join(60)


@pytest.fixture(scope="session", autouse=True)
def _clients_end() -> Iterator[None]:
    yield
    stop_clients()


@pytest.fixture(scope="session")
def scripted() -> Iterator[Scripted]:
    with scripted_server() as target:
        yield target


@pytest.fixture(scope="session")
def keyed() -> Iterator[Scripted]:
    with scripted_server(KEY) as target:
        yield target


@pytest.fixture(scope="session")
def cantor(demo_server: Server) -> Target:
    """`antiphon serve` as it ships."""
    return Target(demo_server.url, "cantor")


@pytest.fixture(scope="session")
def equipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`antiphon serve` with cantor, its adapter `pirate` and an embedding model `encoder`. It gives
    log-probabilities of the whole vocabulary."""
    encoder = write_encoder(tmp_path_factory.mktemp("equipped") / "encoder.gguf")
    models = ("--model", "cantor", "--model", f"encoder={encoder}", "--lora", "pirate")
    with serving(*models, env={"ANTIPHON_MAX_LOGPROBS": "-1"}) as running:
        yield running


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server with keys, an embedding model, a reranker and the knowledge table `sea`."""
    home = tmp_path_factory.mktemp("furnished")
    asyncio.run(fill_table(home / "home" / "knowledge"))
    with furnished(home, f"--model=reranker={write_reranker(home / 'reranker.gguf')}") as made:
        yield made


@pytest.fixture(params=["scripted", "cantor"])
def target(request: pytest.FixtureRequest) -> Target:
    """Both, one after the other."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Target)
    return found


@pytest.fixture
def client(target: Target) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=target.base_url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture
def puppet(scripted: Scripted) -> Iterator[openai.OpenAI]:
    """A client of the scripted server alone."""
    with openai.OpenAI(base_url=scripted.base_url, api_key="none", max_retries=0, timeout=60) as made:
        yield made
