"""The server itself: its sockets, and how it goes away."""

import asyncio
import os
import signal
import socket

from antiphon.dialects.openai.dialect import OpenAI
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.http.application import create_app
from antiphon.http.server import Server, serve
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import ScriptedAnswer, ScriptedEngine
from tests.support.http_server import CHAT, HELLO, Line, at_most, request_bytes
from tests.support.waiting import await_until


def edge_over(answer, drain, **more):
    engine = ScriptedEngine(answer)
    models = ModelRegistry((Model("m", (ModelRoute(engine),), 1),))
    settings = ServerSettings(drain_timeout=drain, **more)
    return engine, AppState(Pipeline(models, Metrics(), 0.0), models, OpenAI(), settings)


async def connect(port):
    return Line(*await asyncio.open_connection("127.0.0.1", port))


async def test_nothing_waits_for_nagle(served):
    """Asserted on the accepted socket, not on the listening one."""
    async with served.line() as line:
        await line.send(request_bytes("/health"))
        await line.reply()
        (connection,) = served.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


async def test_a_running_answer_may_finish_while_the_server_drains():
    gate = asyncio.Event()
    engine, edge = edge_over(ScriptedAnswer(gate=gate), drain=30)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, started = listener.getsockname()[1], asyncio.Event()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(serve(create_app(edge), edge, listener, started.set))
            await started.wait()
            line = await connect(port)
            await line.send(request_bytes(CHAT, HELLO | {"stream": True}))
            await await_until(lambda: engine.streams)
            os.kill(os.getpid(), signal.SIGTERM)
            async with at_most(10):
                while not await refused(port):
                    await asyncio.sleep(0.01)
            assert not running.done()
            gate.set()
            assert b"[DONE]" in await line.rest()
            line.drop()
    assert len(edge.in_flight) == 0


async def test_requests_over_the_drain_time_end_with_a_visible_error():
    engine, edge = edge_over(ScriptedAnswer(gate=asyncio.Event()), drain=0.3)
    endless, endless_edge = edge_over(ScriptedAnswer(endless=True, pace=0.02), drain=0.3)
    for over, at, body in (
        (engine, edge, HELLO),
        (engine, edge, HELLO | {"stream": True}),
        (endless, endless_edge, HELLO | {"stream": True}),
    ):
        over.streams.clear()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port, started = listener.getsockname()[1], asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(serve(create_app(at), at, listener, started.set))
                await started.wait()
                line = await connect(port)
                await line.send(request_bytes(CHAT, body))
                while not over.streams:
                    await asyncio.sleep(0.01)
                begun = b"" if at is edge else await line.until(b"data: ")
                os.kill(os.getpid(), signal.SIGINT)
                said = begun + await line.rest()
                line.drop()
        assert b'"code":"engine_unavailable"' in said and b"[DONE]" not in said
        if at is edge:
            assert said.startswith(b"HTTP/1.1 503") and b"retry-after: 5" in said
        else:
            assert said.startswith(b"HTTP/1.1 200") and said.rstrip().endswith(b"0")
        assert over.streams[0].over.is_set()


async def refused(port):
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return True
    writer.transport.abort()
    return False


async def test_an_idle_connection_does_not_hold_the_server_back():
    _, edge = edge_over(ScriptedAnswer(), drain=30)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(create_app(edge), edge)
        async with asyncio.TaskGroup() as group, at_most(10):
            group.create_task(server.serve(listener))
            line = await connect(listener.getsockname()[1])
            await line.send(request_bytes("/health"))
            assert (await line.reply()).status == 200
            silent = await connect(listener.getsockname()[1])
            server.stop()
            assert await line.rest() == b"" and await silent.rest() == b""
            line.drop(), silent.drop()


async def test_no_access_log_and_no_server_header(served, caplog):
    caplog.set_level("DEBUG")
    reply = await served.ask("/health")
    assert "server" not in reply.headers and reply.headers["date"]
    assert not [record for record in caplog.records if "/health" in record.getMessage()]


async def test_a_server_that_was_asked_to_stop_is_first_not_ready():
    """The second call ends the delay of an hour; the delay of the second server ends by itself."""
    for delay in (3600, 0.05):
        _, edge = edge_over(ScriptedAnswer(), drain=30, drain_delay=delay)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port, server = listener.getsockname()[1], Server(create_app(edge), edge)
            async with asyncio.TaskGroup() as group, at_most(10):
                running = group.create_task(server.serve(listener))
                assert await ask(port, "/health/ready") == (200, "ok")
                server.stop()
                if delay == 3600:
                    assert await ask(port, "/health/ready") == (503, "stopping")
                    assert (await ask(port, CHAT, HELLO))[0] == 200
                    server.stop()
                await running
            assert await refused(port)


async def test_a_server_that_is_replaced_stays_ready():
    """Another process takes the new connections."""
    _, edge = edge_over(ScriptedAnswer(), drain=30)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(create_app(edge), edge)
        async with asyncio.TaskGroup() as group, at_most(10):
            group.create_task(server.serve(listener))
            line = await connect(listener.getsockname()[1])
            await line.send(request_bytes("/health"))
            assert (await line.reply()).status == 200
            server.retire()
            await line.send(request_bytes("/health/ready"))
            assert (await line.reply()).status == 200
            line.drop()


async def ask(port, path, body=None):
    line = await connect(port)
    await line.send(request_bytes(path, body))
    reply = await line.reply()
    line.drop()
    return reply.status, reply.json().get("status")
