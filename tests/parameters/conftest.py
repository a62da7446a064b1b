"""The servers that cases are asked of."""

import asyncio
import shutil
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

import httpx2
import pytest
import uvloop

from antiphon.domain.context import Context
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor
from antiphon.domain.request import Constraint, Conversation, GenerationRequest, Prompt
from antiphon.domain.values import replace
from antiphon.engines.base import PreparedRequest, TokenEvent, TokenRequest
from antiphon.rendering.renderer import Renderer, RendererOptions
from antiphon.rendering.template.request_template import TemplateHelper
from antiphon_testing import Script, ScriptedEngine, ScriptedTokenEngine, scripted_info
from antiphon_testing.toy_model import build_vocabulary
from tests.parameters.registry import INFILL, Asker
from tests.support.chat_templates import prove_here
from tests.support.http_server import serving as serving_scripted
from tests.support.hub_server import HubServer, Repository, serve_hub
from tests.support.knowledge_tables import fill_table
from tests.support.lora_server import create_thread_runner
from tests.support.model_files import write_encoder, write_reranker, write_thinker
from tests.support.server import serving
from tests.support.vendor_engine import VendorDouble, describe_request

ADAPTERS = Path(__file__).parents[2] / "src" / "antiphon" / "bundled" / "adapters"

NAMING = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }} {{ message['name'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template that shows who speaks, as cantor's does not."""


@pytest.fixture(scope="session")
def cantor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """A real server: cantor, an embedding model, and a directory and a hub that adapters come from."""
    place = tmp_path_factory.mktemp("parameters")
    shelf = place / "shelf"
    shutil.copytree(ADAPTERS, shelf)
    encoder = write_encoder(place / "encoder.gguf")
    reranker = write_reranker(place / "reranker.gguf")
    cantor = ADAPTERS.parent / "cantor.gguf"
    files = {"mood.gguf": (shelf / "mood.gguf").read_bytes()}
    repositories = {"ada/mood": Repository(files), "ada/gated": Repository(files, is_gated=True)}
    asyncio.run(fill_table(place / "home" / "knowledge"))
    env = {
        "ANTIPHON_LORA_DIRECTORIES": str(shelf),
        "ANTIPHON_LORA_REPOSITORIES": "ada/*",
        "ANTIPHON_HOME": str(place / "home"),
        "ANTIPHON_REQUEST_TEMPLATES": "true",
        "ANTIPHON_ADAPTERS": f"mood={shelf / 'mood.gguf'}",
        "HF_HUB_ETAG_TIMEOUT": "60",  # the hub's threads wait where the machine is busy
    }
    others = ("--model", f"encoder={encoder}", "--model", f"reranker={reranker}")
    models = ("--model", f"cantor={cantor}", *others, "--exact")
    with (
        serve_hub(HubServer(repositories)) as hub,
        serving(*models, env=env | {"ANTIPHON_HUB_ENDPOINT": hub.url}) as server,
        server.client() as client,
    ):
        yield Asker(client)


@pytest.fixture(scope="session")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    """The operator of a real server with keys: cantor, an embedding model, a reranker, and cantor as a model
    that reasons."""
    place = tmp_path_factory.mktemp("ledgered")
    files = {
        "cantor": ADAPTERS.parent / "cantor.gguf",
        "encoder": write_encoder(place / "encoder.gguf"),
        "reranker": write_reranker(place / "reranker.gguf"),
        "thinker": write_thinker(place / "thinker.gguf"),
    }
    env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(place / "home")}
    with serving("--exact", *(f"--model={name}={file}" for name, file in files.items()), env=env) as server:
        admin = (place / "home" / "admin.key").read_text().strip()
        with server.client(headers={"authorization": f"Bearer {admin}"}) as client:
            yield client


@pytest.fixture(scope="session")
def thinker(operator: httpx2.Client) -> Asker:
    return Asker(operator, model="thinker")


@pytest.fixture(scope="session")
def ledgered(operator: httpx2.Client) -> Asker:
    return Asker(operator, has_ledger=True)


class Recorded(ScriptedEngine):
    """The renderer in a scripted engine's place."""

    def __init__(self, renderer: Renderer) -> None:
        super().__init__()
        self._renderer = renderer

    async def prepare(self, request: GenerationRequest, context: Context) -> PreparedRequest:
        return await self._renderer.prepare(request, context)

    async def encode(self, prompt: Prompt, actor: Actor = LOCAL_ANONYMOUS) -> tuple[int, ...]:
        return await self._renderer.encode(prompt, actor)

    async def apply(self, conversation: Conversation, actor: Actor = LOCAL_ANONYMOUS) -> str:
        return await self._renderer.apply(conversation, actor)


class Keeping(ScriptedTokenEngine):
    """Keeps every request whole, and says its script whatever the constraint is."""

    def __init__(self) -> None:
        vocabulary = replace(build_vocabulary(), infill=INFILL)
        info = scripted_info(chat_template=NAMING, takes_predictions=True)
        super().__init__(Script(text="Yes."), info=info, vocabulary=vocabulary)
        self.kept: list[TokenRequest] = []

    async def check(self, constraint: Constraint) -> None:
        """Takes every one."""

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        self.kept.append(request)
        async with aclosing(super().generate(replace(request, constraint=None))) as events:
            async for event in events:
                yield event


@pytest.fixture(scope="session")
def recorder() -> Iterator[Asker]:
    """The edge and the renderer over a token engine that keeps every request."""
    tokens = Keeping()
    run = create_thread_runner()
    helper = TemplateHelper(lambda target, payload, limits: run(target, payload, limits, {}))
    options = RendererOptions(helper=helper)
    with serve_in_thread(Recorded(Renderer(tokens, prove=prove_here, options=options))) as client:
        yield Asker(client, tokens.kept, model="m")


@pytest.fixture(scope="session")
def vendor() -> Iterator[Asker]:
    """The edge over an engine in a vendor's place."""
    with serve_in_thread(VendorDouble(describe_request)) as client:
        yield Asker(client, model="m")


@contextmanager
def serve_in_thread(engine: ScriptedEngine) -> Iterator[httpx2.Client]:
    """A server over an engine, in a thread with a loop of its own, and its client."""
    ready, ports = threading.Event(), list[int]()
    loop_and_end: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        end = asyncio.Event()
        async with serving_scripted(engine) as served:
            ports.append(served.port)
            loop_and_end.append((asyncio.get_running_loop(), end))
            ready.set()
            await end.wait()

    def main() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=main)
    thread.start()
    assert ready.wait(60)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{ports[0]}", timeout=60) as client:
            yield client
    finally:
        loop, end = loop_and_end[0]
        loop.call_soon_threadsafe(end.set)
        thread.join(60)
