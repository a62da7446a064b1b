"""Adapters as models: loaded and unloaded over HTTP, named by callers, and never in silence the base."""

import asyncio
import os
import socket
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from antiphon.processes.sandbox import Limits
from antiphon.weights.adapter_store import AdapterStore
from antiphon_testing import Hold, Script, ScriptedTokenEngine
from benchmarks.make_model import SIZES, write_model
from tests.support.http_server import CHAT, KEY, TEXT, at_most, gone, request_bytes, serving
from tests.support.lora_server import LOAD, MOST, UNLOAD, Lora, lending, write_peft
from tests.support.waiting import await_until

ASKED = {"prompt": "hi", "temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of architecture llama; only its header counts here."""
    return write_model(tmp_path_factory.mktemp("base") / "base.gguf", SIZES["tiny"], "f32")


@pytest.fixture
async def lora(tmp_path, base):
    async with lending(tmp_path, base) as running:
        yield running


@pytest.fixture
async def isolated(tmp_path, base):
    async with lending(tmp_path, base, isolated=True) as running:
        yield running


async def said(lora: Lora, model: str) -> str:
    reply = await lora.ask(TEXT, ASKED | {"model": model})
    assert reply.status == 200, reply.body
    assert reply.json()["model"] == model
    text: str = reply.json()["choices"][0]["text"]
    return text


# --- loading and unloading ---


async def test_a_loaded_adapter_answers_and_an_unloaded_one_is_gone(isolated):
    lora = isolated
    alone = await said(lora, "m")
    loaded = await lora.load("org/pirate:1", lora.peft("pirate"))
    assert (loaded.status, loaded.body) == (200, b"Success: LoRA adapter 'org/pirate:1' added successfully.")
    spoken = await said(lora, "org/pirate:1")
    assert spoken != alone == await said(lora, "m")
    (digest,) = lora.tokens.adapters.paths
    assert [request.adapter for request in lora.tokens.requests] == [None, digest, None]
    unloaded = await lora.unload("org/pirate:1")
    assert (unloaded.status, unloaded.body) == (
        200,
        b"Success: LoRA adapter 'org/pirate:1' removed successfully.",
    )
    for path, body in ((TEXT, ASKED), (CHAT, {"messages": [{"role": "user", "content": "hi"}]})):
        reply = await lora.ask(path, body | {"model": "org/pirate:1"})
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert lora.tokens.adapters.paths == {} and len(lora.tokens.requests) == 3


async def test_what_is_listed_says_which_model_an_adapter_belongs_to(lora):
    await lora.load("pirate", lora.peft("pirate"))
    rows = {row["id"]: row for row in (await lora.ask("/v1/models")).json()["data"]}
    (digest,) = lora.tokens.adapters.paths
    assert (rows["m"]["parent"], rows["m"]["root"]) == (None, "m")
    assert (rows["pirate"]["parent"], rows["pirate"]["root"]) == ("m", f"sha256:{digest}")
    shown = (await lora.ask("/v1/models/pirate")).json()
    assert shown["adapter"]["digest"] == digest
    assert (shown["adapter"]["rank"], shown["adapter"]["alpha"]) == (2, 4.0)
    assert shown["profile"] == (await lora.ask("/v1/models/m")).json()["profile"]
    assert str(lora.registry) not in str(shown)


async def test_an_adapter_shows_the_token_ids_of_its_only_model(lora):
    await lora.load("pirate", lora.peft("pirate"))
    asked = {"prompt": "hi"}
    expected = (await lora.ask("/tokenize", asked | {"model": "m"})).json()
    assert (await lora.ask("/tokenize", asked | {"model": "pirate"})).json() == expected
    assert (await lora.ask("/tokenize", asked)).json() == expected


async def test_a_gguf_adapter_is_taken_as_it_is(lora):
    await lora.load("pirate", lora.peft("pirate"))
    (digest,) = lora.tokens.adapters.paths
    (lora.shelf / "same.gguf").write_bytes((lora.registry / f"{digest}.gguf").read_bytes())
    assert (await lora.load("same", "same.gguf")).status == 200
    assert list(lora.tokens.adapters.paths) == [digest]
    assert await said(lora, "same") == await said(lora, "pirate")
    await lora.unload("pirate")
    assert list(lora.tokens.adapters.paths) == [digest], "the other name still needs it"
    assert await said(lora, "same")
    await lora.unload("same")
    assert lora.tokens.adapters.paths == {}


async def test_a_name_with_other_content_is_refused_without_replace(lora):
    first, second = lora.peft("first"), lora.peft("second", 2.0)
    await lora.load("pirate", first)
    before = await said(lora, "pirate")
    assert (await lora.load("pirate", first)).status == 200, "the same again changes nothing"
    reply = await lora.load("pirate", second)
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_value", "lora_name")
    assert "load_inplace" in reply.error["message"]
    assert await said(lora, "pirate") == before
    assert (await lora.load("pirate", second, load_inplace=True)).status == 200
    assert await said(lora, "pirate") != before
    assert len(lora.tokens.adapters.paths) == 1 and (await lora.names()) == ["m", "pirate"]


async def test_the_name_of_a_base_model_is_never_an_adapters(lora):
    for more in ({}, {"load_inplace": True}):
        reply = await lora.load("m", lora.shelf / "nothing", **more)
        assert (reply.status, reply.error["param"]) == (400, "lora_name")
    reply = await lora.unload("m")
    assert (reply.status, reply.error["code"]) == (400, "invalid_value")
    assert await said(lora, "m")


async def test_unloading_what_is_not_there_is_a_404(lora):
    reply = await lora.unload("pirate")
    assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "model_not_found", "lora_name")


async def test_among_several_models_the_base_is_named(tmp_path, base):
    async with lending(tmp_path, base, models=("m", "n")) as lora:
        source = lora.peft("pirate")
        reply = await lora.load("pirate", source)
        assert (reply.status, reply.error["code"], reply.error["param"]) == (
            400,
            "missing_required_parameter",
            "base_model_name",
        )
        assert "m, n" in reply.error["message"]
        absent = await lora.load("pirate", source, base_model_name="zzz")
        assert (absent.status, absent.error["param"]) == (404, "base_model_name")
        assert (await lora.load("pirate", source, base_model_name="n")).status == 200
        assert (await lora.call("/v1/models/pirate")).json()["parent"] == "n"
        assert (await lora.load("other", source, base_model_name="pirate")).status == 400


# --- while requests run ---


async def test_unloading_refuses_new_requests_and_ends_no_running_ones(tmp_path, base):
    gate = asyncio.Event()
    tokens = ScriptedTokenEngine(Script(text="Hello world", hold=Hold(gate, 1)))
    async with lending(tmp_path, base, tokens=tokens) as lora:
        await lora.load("pirate", lora.peft("pirate"))
        (digest,) = tokens.adapters.paths
        async with asyncio.TaskGroup() as group, lora.line() as streamed:
            buffered = group.create_task(lora.ask(TEXT, {"model": "pirate", "prompt": "a"}))
            await streamed.send(request_bytes(TEXT, {"model": "pirate", "prompt": "b", "stream": True}))
            await await_until(lambda: tokens.adapters.running[digest] >= 2)
            assert (await lora.unload("pirate")).status == 200
            assert (await lora.ask(TEXT, {"model": "pirate", "prompt": "c"})).status == 404
            assert tokens.adapters.running[digest] == 2
            gate.set()
            reply = await streamed.reply()
        assert buffered.result().json()["choices"][0]["text"] == "Hello world"
        assert reply.events()[-1] == "[DONE]"
        assert "".join(event["choices"][0]["text"] for event in reply.events()[:-1]) == "Hello world"


async def test_loading_while_others_run_disturbs_none(tmp_path, base):
    tokens = ScriptedTokenEngine(Script(text="a long answer", endless=True, pace=0.001))
    async with lending(tmp_path, base, tokens=tokens) as lora:
        sources = [lora.peft(f"a{index}", index + 1.0) for index in range(3)]
        async with asyncio.TaskGroup() as group:
            asked = {"model": "m", "prompt": "hi", "max_tokens": 1500}
            running = [group.create_task(lora.ask(TEXT, asked)) for _ in range(4)]
            for index, source in enumerate(sources):
                assert (await lora.load(f"a{index}", source)).status == 200
                assert (await lora.ask(TEXT, ASKED | {"model": "m"})).status == 200
                assert (await lora.unload(f"a{index}")).status == 200
        assert {task.result().status for task in running} == {200}
        assert {task.result().json()["usage"]["completion_tokens"] for task in running} == {1500}


async def test_two_loads_of_one_name_at_once_leave_one_of_them(lora):
    sources = [lora.peft("one"), lora.peft("two", 2.0)]
    replies = await asyncio.gather(*(lora.load("pirate", source) for source in sources))
    assert sorted(reply.status for reply in replies) == [200, 400]
    assert await lora.names() == ["m", "pirate"] and len(lora.tokens.adapters.paths) == 1


async def test_an_adapter_missing_in_its_engine_is_a_retry_or_a_404(lora):
    """As when the engine's process has just come back: never the base model's answer."""
    await lora.load("pirate", lora.peft("pirate"))
    paths, lora.tokens.adapters.paths = lora.tokens.adapters.paths, {}
    reply = await lora.ask(TEXT, ASKED | {"model": "pirate"})
    assert (reply.status, reply.error["code"]) == (503, "engine_unavailable")
    lora.tokens.adapters.paths = paths
    assert await said(lora, "pirate")


async def test_loading_again_restores_an_engine_that_lost_the_adapter(lora):
    source = lora.peft("pirate")
    await lora.load("pirate", source)
    before = await said(lora, "pirate")
    (digest,) = lora.tokens.adapters.paths
    lora.tokens.adapters.paths.clear()
    lora.tokens.adapters.unfit.add(digest)
    assert (await lora.load("pirate", source)).status == 400, "no success that is none"
    lora.tokens.adapters.unfit.clear()
    assert (await lora.load("pirate", source)).status == 200
    assert await said(lora, "pirate") == before


async def test_an_adapter_that_the_library_refuses_changes_nothing(lora):
    source = lora.peft("pirate")
    await lora.load("pirate", source)
    (digest,) = lora.tokens.adapters.paths
    await lora.unload("pirate")
    lora.tokens.adapters.unfit.add(digest)
    reply = await lora.load("pirate", source)
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_value", "lora_path")
    assert await lora.names() == ["m"]


# --- numbers ---


async def test_usage_and_metrics_name_the_adapter_until_it_is_gone(lora):
    await lora.load("pirate", lora.peft("pirate"))
    await said(lora, "pirate")
    page = (await lora.ask("/metrics")).body.decode()
    assert 'antiphon_generations_total{model="pirate",status="ok"} 1' in page
    assert 'antiphon_engine_up{model="m"} 1' in page and 'antiphon_engine_up{model="pirate"}' not in page
    await lora.unload("pirate")
    assert "pirate" not in (await lora.ask("/metrics")).body.decode()
    assert (await lora.ask("/health/ready")).status == 200


async def test_names_that_come_and_go_leave_nothing_behind(lora):
    source = lora.peft("pirate")
    for index in range(3):
        await lora.load(f"n{index}", source)
        await said(lora, f"n{index}")
        await lora.unload(f"n{index}")
    assert "n0" not in repr(lora.edge.metrics) and len(lora.edge.metrics.seconds) == 0
    assert [path.suffix for path in lora.registry.iterdir()] == [".gguf"]


# --- refused ---


async def test_without_directories_nobody_loads_or_unloads(tmp_path):
    async with serving() as server:
        for path, body in ((LOAD, {"lora_name": "a", "lora_path": "b"}), (UNLOAD, {"lora_name": "m"})):
            reply = await server.ask(path, body)
            assert (reply.status, reply.error["code"]) == (403, "permission_denied")
            assert "ANTIPHON_LORA_DIRECTORIES" in reply.error["message"]


async def test_both_routes_ask_for_the_key(tmp_path, base):
    async with lending(tmp_path, base, key=KEY) as lora:
        body = {"lora_name": "pirate", "lora_path": str(lora.peft("pirate"))}
        for path in (LOAD, UNLOAD):
            for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
                assert (await lora.ask(path, body, headers=headers)).status == 401
        assert await lora.names() == ["m"] and not lora.registry.exists()
        assert (await lora.load("pirate", body["lora_path"])).status == 200


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"lora_path": "a"}, "missing_required_parameter", "lora_name"),
        ({"lora_name": "a"}, "missing_required_parameter", "lora_path"),
        ({"lora_name": "", "lora_path": "a"}, "invalid_value", "lora_name"),
        ({"lora_name": "a b", "lora_path": "a"}, "invalid_value", "lora_name"),
        ({"lora_name": "a\u202e", "lora_path": "a"}, "invalid_value", "lora_name"),
        ({"lora_name": "../a", "lora_path": "a"}, "invalid_value", "lora_name"),
        ({"lora_name": "a\n", "lora_path": "a"}, "invalid_value", "lora_name"),
        ({"lora_name": "a" * 201, "lora_path": "a"}, "invalid_value", "lora_name"),
        ({"lora_name": "a/../b", "lora_path": "a"}, "invalid_value", "lora_name"),
        ({"lora_name": "a//b", "lora_path": "a"}, "invalid_value", "lora_name"),
        ({"lora_name": 1, "lora_path": "a"}, "invalid_value", "lora_name"),
        ({"lora_name": "a", "lora_path": ""}, "invalid_value", "lora_path"),
        ({"lora_name": "a", "lora_path": ["a"]}, "invalid_value", "lora_path"),
        ({"lora_name": "a", "lora_path": "a" * 5000}, "invalid_value", "lora_path"),
        ({"lora_name": "a", "lora_path": "a", "load_inplace": "yes"}, "invalid_value", "load_inplace"),
        ({"lora_name": "a", "lora_path": "a", "lora_int_id": 1}, "unknown_parameter", "lora_int_id"),
        ({"lora_name": "a", "lora_path": "a", "api_base": "http://x"}, "unknown_parameter", "api_base"),
        (
            {"lora_name": "a", "lora_path": "a", "is_3d_lora_weight": True},
            "unsupported_parameter",
            "is_3d_lora_weight",
        ),
    ],
    ids=range(18),
)
async def test_a_body_that_is_wrong_is_refused_by_the_fields_name(lora, body, code, param):
    reply = await lora.ask(LOAD, body)
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, code, param)
    assert await lora.names() == ["m"]


async def test_vllms_number_of_an_adapter_is_refused_by_name(lora):
    reply = await lora.ask(UNLOAD, {"lora_name": "a", "lora_int_id": 1})
    assert (reply.status, reply.error["code"], reply.error["param"]) == (
        400,
        "unsupported_parameter",
        "lora_int_id",
    )


async def refused(lora: Lora, path: object, *words: str) -> str:
    """The message of a load that is refused for its path; nothing is left of it, and nothing told of where
    the server keeps its things."""
    async with at_most(30):
        reply = await lora.load("pirate", str(path))
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_value", "lora_path")
    message: str = reply.error["message"]
    assert all(word in message for word in words), message
    assert "Traceback" not in message and ".loading-" not in message and str(lora.registry) not in message
    assert await lora.names() == ["m"]
    assert not lora.registry.exists() or list(lora.registry.iterdir()) == []
    return message


OUTSIDE = "is in none of the directories"


async def test_no_spelling_of_a_path_loads_from_other_directories(lora, tmp_path):
    secret = tmp_path / "secret"
    write_peft(secret, lora.base)
    (lora.shelf / "inside").mkdir()
    for path in (
        secret,
        "../secret",
        f"{lora.shelf}/../secret",
        f"{lora.shelf}/inside/../../secret",
        "inside/../../secret",
        f"{lora.shelf}-other",
        "/etc/passwd",
        "/",
        "/proc/self/environ",
        f"file://{secret}",
        "~/adapter",
    ):
        message = await refused(lora, path)
        assert OUTSIDE in message or "No such file" in message, message
    assert await refused(lora, secret) == (await refused(lora, tmp_path / "absent")).replace(
        "absent", "secret"
    ), "what lies outside cannot be found out"


async def test_a_nul_in_a_path_is_refused(lora):
    await refused(lora, f"{lora.shelf}/a\0b", "NUL")


async def test_links_that_lead_out_are_not_followed(lora, tmp_path):
    secret = tmp_path / "secret"
    write_peft(secret, lora.base)
    (lora.shelf / "link").symlink_to(secret)
    await refused(lora, "link", OUTSIDE)
    await refused(lora, "link/adapter_config.json", OUTSIDE)
    (lora.shelf / "up").symlink_to("..")
    await refused(lora, "up/secret", OUTSIDE)
    (lora.shelf / "round").symlink_to("round")
    await refused(lora, "round")
    taken = lora.shelf / "taken"
    taken.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (taken / name).symlink_to(secret / name)
    await refused(lora, "taken", OUTSIDE)


async def test_links_within_the_directories_are_followed(lora):
    """As the hub's cache lays its files out."""
    blobs = lora.peft("blobs")
    snapshot = lora.shelf / "snapshot"
    snapshot.mkdir()
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(Path("..") / "blobs" / path.name)
    assert (await lora.load("pirate", "snapshot")).status == 200


async def test_what_is_no_regular_file_is_refused_and_never_opened(lora, monkeypatch):
    os.mkfifo(lora.shelf / "pipe")
    await refused(lora, "pipe", "not a regular file")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(lora.shelf)  # paths of sockets are short
        listener.bind("socket")
        await refused(lora, "socket", "not a regular file")
    with_pipe = lora.peft("with-pipe")
    (with_pipe / "adapter_model.safetensors").unlink()
    os.mkfifo(with_pipe / "adapter_model.safetensors")
    await refused(lora, with_pipe, "not a regular file")


async def test_a_file_that_is_too_large_is_refused_before_it_is_whole(lora):
    with (lora.shelf / "huge.gguf").open("wb") as file:
        file.truncate(1 << 40)
    await refused(lora, "huge.gguf", f"{MOST:,}", "ANTIPHON_LORA_MAX_BYTES")


async def test_a_full_registry_is_an_error_for_the_operator(isolated, monkeypatch):
    """A limit of the helper stands for a disk that is full; both the copy and the conversion meet it."""
    lora = isolated
    source = lora.peft("pirate")
    await lora.load("pirate", source)
    (digest,) = lora.tokens.adapters.paths
    whole = (lora.registry / f"{digest}.gguf").read_bytes()
    (lora.shelf / "whole.gguf").write_bytes(whole)
    for size in (100, len(whole) - 1):
        limits = Limits(120.0, 240.0, 4 << 30, writes=size)
        monkeypatch.setattr(AdapterStore, "_build_limits", lambda *_, limits=limits: limits)
        for said in ("whole.gguf", "pirate"):
            reply = await lora.load("other", said)
            assert (reply.status, reply.error["param"]) == (500, None), reply.body
            assert "ANTIPHON_LORA_REGISTRY" in reply.error["message"]
    assert await lora.names() == ["m", "pirate"]
    assert [path.name for path in lora.registry.iterdir()] == [f"{digest}.gguf"]


async def test_what_is_no_adapter_is_refused_by_what_is_wrong_with_it(lora):
    shelf = lora.shelf
    await refused(lora, "absent.gguf", "absent.gguf", "No such file")
    (shelf / "text.gguf").write_bytes(b"hello, this is text")
    await refused(lora, "text.gguf", "text.gguf", "not a GGUF")
    (shelf / "empty.gguf").touch()
    await refused(lora, "empty.gguf", "empty")
    (shelf / "empty").mkdir()
    await refused(lora, "empty", "adapter_config.json")
    lora.peft("dora", use_dora=True)
    await refused(lora, "dora", "dora", "use_dora")
    other = lora.peft("other")
    wrong = {
        f"base_model.model.model.layers.0.self_attn.v_proj.lora_{part}.weight": np.ones((3, 3), np.float32)
        for part in "AB"
    }
    save_file(wrong, other / "adapter_model.safetensors")
    await refused(lora, "other", "another model")
    pickled = lora.peft("pickled")
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    await refused(lora, "pickled", "can contain code")


async def test_a_cut_adapter_is_refused_and_others_go_on(tmp_path, base):
    tokens = ScriptedTokenEngine(Script(text="a long answer", endless=True, pace=0.001))
    async with lending(tmp_path, base, tokens=tokens) as lora:
        await lora.load("good", lora.peft("good"))
        (digest,) = tokens.adapters.paths
        whole = (lora.registry / f"{digest}.gguf").read_bytes()
        async with asyncio.TaskGroup() as group:
            asked = {"model": "good", "prompt": "hi", "max_tokens": 1500}
            running = group.create_task(lora.ask(TEXT, asked))
            for length in (3, 30, len(whole) // 2, len(whole) - 1):
                (lora.shelf / "cut.gguf").write_bytes(whole[:length])
                reply = await lora.load("cut", "cut.gguf")
                assert (reply.status, reply.error["param"]) == (400, "lora_path")
        assert running.result().json()["usage"]["completion_tokens"] == 1500
        assert await lora.names() == ["m", "good"]
        assert [path.name for path in lora.registry.iterdir()] == [f"{digest}.gguf"]


async def test_a_disconnect_while_an_adapter_is_read_ends_the_load(isolated):
    lora = isolated
    source = lora.peft("pirate")
    async with lora.line() as line:
        await line.send(request_bytes(LOAD, {"lora_name": "pirate", "lora_path": str(source)}))
        await await_until(lambda: lora.registry.exists() and list(lora.registry.iterdir()))
        line.drop()
    await gone(lora.edge.in_flight)
    assert await lora.names() == ["m"] and list(lora.registry.iterdir()) == []
    assert (await lora.load("pirate", source)).status == 200
