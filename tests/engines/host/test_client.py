"""The stand-in: what a loss means to each call, and how it comes back."""

import asyncio
from collections.abc import Awaitable
from contextlib import aclosing

import pytest

import antiphon
from antiphon.domain.values import replace
from antiphon.engines.base import EngineState, PromptTokens, SequenceStarted, Steps, TextPiece
from antiphon.engines.host.client import HostTokenEngine, Retirement, open_host_engine
from antiphon.engines.host.frames import TO_HOST, CancelCall, GenerateCall, StartedReply, StepsReply
from antiphon.engines.host.server import serve_engine
from antiphon.errors import (
    DeadlineExceeded,
    EngineBusy,
    EngineDied,
    EngineError,
    EngineUnavailable,
    InvalidValue,
    LoadError,
    ModelNotFound,
    Overloaded,
)
from antiphon.processes.ipc import MAX_MESSAGE, PROTOCOL, FrameReader, Hello
from antiphon_testing import Hold, Script, ScriptedTokenEngine
from tests.engines.host.peer import HELLO, Peer, messages, pretending
from tests.support.host_engines import SPEC, build_request, create_brief_engine, create_endless_engine
from tests.support.host_link import open_link, short_directory
from tests.support.waiting import await_until

PATIENCE = 20.0
"""Seconds to wait for what takes milliseconds."""


async def until(engine: HostTokenEngine, state: EngineState) -> None:
    await await_until(lambda: engine.state() is state)


async def test_before_the_first_connection_a_call_is_refused_at_once() -> None:
    with short_directory() as place:
        async with open_host_engine(str(place / "0.sock"), "cantor") as client:
            assert client.state() is EngineState.STARTING
            with pytest.raises(EngineUnavailable, match="cantor is starting; try again") as refusal:
                await anext(client.generate(build_request()))
            assert refusal.value.retry_after
            with pytest.raises(EngineUnavailable):
                await client.info()


async def test_a_lost_connection_kills_started_calls_only() -> None:
    engine = create_endless_engine()
    async with open_link(engine) as link, asyncio.timeout(PATIENCE):
        running = [link.client.generate(build_request()) for _ in range(4)]
        for events in running:
            assert isinstance(await anext(events), SequenceStarted)
        queued = link.client.generate(build_request())
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(failure(queued))
            while (await link.client.info()).load.queued == 0:
                await asyncio.sleep(0.005)
            await link.host.drain(0)
            assert isinstance(await waiting, EngineUnavailable)
        for events in running:
            assert isinstance(await failure(events), EngineDied)


async def test_a_host_that_can_serve_no_call_refuses_at_once() -> None:
    async with open_link(create_endless_engine()) as link, asyncio.timeout(PATIENCE):
        running = link.client.generate(build_request())
        assert isinstance(await anext(running), SequenceStarted)
        link.host.note_absence("no replica of cantor runs")
        await until(link.client, EngineState.RESTARTING)
        with pytest.raises(EngineUnavailable, match="no replica of cantor runs") as refusal:
            await link.client.info()
        assert refusal.value.retry_after
        assert isinstance(await anext(running), Steps)
        link.host.note_absence("")
        await until(link.client, EngineState.READY)
        assert (await link.client.info()).load.running == 1
        await running.aclose()


async def test_a_new_connection_is_told_that_no_call_can_be_served() -> None:
    with short_directory() as place:
        path = str(place / "0.sock")
        async with serve_engine(create_endless_engine(), path) as host:
            host.note_absence("no replica")
            async with open_host_engine(path, "cantor") as client, asyncio.timeout(PATIENCE):
                await until(client, EngineState.RESTARTING)
                host.note_absence("")
                await until(client, EngineState.READY)


async def failure(events) -> Exception | None:
    """What the stream ends with."""
    try:
        async for _ in events:
            pass
    except (EngineDied, EngineUnavailable) as error:
        return error
    return None


async def test_events_that_had_come_are_read_before_the_error() -> None:
    async def behave(peer: Peer) -> None:
        peer.send(HELLO)
        await peer.asked()
        peer.send(StartedReply(1, SequenceStarted(3)), StepsReply(1, Steps((4,))), StepsReply(1, Steps((5,))))
        peer.writer.close()

    with short_directory() as place:
        async with (
            pretending(place / "0.sock", behave),
            open_host_engine(str(place / "0.sock"), "x") as client,
        ):
            await until(client, EngineState.READY)
            events = client.generate(build_request())
            heard = [await anext(events)]
            await until(client, EngineState.RESTARTING)
            heard += [await anext(events), await anext(events)]
            assert heard == [SequenceStarted(3), Steps((4,)), Steps((5,))]
            with pytest.raises(EngineDied):
                await anext(events)


async def test_it_connects_again_to_a_new_host() -> None:
    with short_directory() as place:
        path = str(place / "0.sock")
        async with open_host_engine(path, "x") as client, asyncio.timeout(PATIENCE):
            for generation in (1, 2, 3):
                async with serve_engine(create_brief_engine(), path):
                    await client.load(SPEC)
                    assert client.generation == generation
                    assert [event async for event in client.generate(build_request())]
                await until(client, EngineState.RESTARTING)
                with pytest.raises(EngineUnavailable, match="starting again"):
                    await client.tokenize([TextPiece("a")], False)


async def test_giving_up_ends_every_call_and_refuses_new_ones() -> None:
    async with open_link(create_endless_engine()) as link:
        running = link.client.generate(build_request())
        assert isinstance(await anext(running), SequenceStarted)
        link.client.give_up("it died too often")
        assert isinstance(await failure(running), EngineDied)
        assert link.client.state() is EngineState.FAILED
        with pytest.raises(EngineUnavailable, match="it died too often") as refusal:
            await anext(link.client.generate(build_request()))
        assert refusal.value.retry_after is None
        with pytest.raises(LoadError, match="it died too often"):
            await link.client.load(SPEC)


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize(
    ("is_removed", "error_type", "text"),
    [
        (True, ModelNotFound, "a reload removed the model m, .*; choose another model"),
        (False, EngineDied, "a reload replaced the engine of m, .*; try again"),
    ],
)
async def test_calls_that_outlive_their_host_name_the_reload(
    is_removed: bool, error_type: type[Exception], text: str, is_closed: bool
) -> None:
    """It does not matter whether this process or the supervisor ends the host first."""
    async with open_link(create_endless_engine()) as link, asyncio.timeout(PATIENCE):
        running = link.client.generate(build_request())
        assert isinstance(await anext(running), SequenceStarted)
        link.client.retire(Retirement("m", is_removed))
        await anext(running)  # it goes on
        await (link.client.aclose() if is_closed else link.host.drain(0))
        with pytest.raises(error_type, match=text):
            async for _ in running:
                pass
        with pytest.raises(EngineUnavailable, match=text):
            await anext(link.client.generate(build_request()))


async def test_giving_up_while_a_host_is_greeted_ends_the_connecting() -> None:
    connected, given_up = asyncio.Event(), asyncio.Event()

    async def behave(peer: Peer) -> None:
        connected.set()
        await given_up.wait()
        peer.send(HELLO)

    with short_directory() as place:
        client = HostTokenEngine(str(place / "0.sock"), "x")
        async with (
            asyncio.timeout(PATIENCE),
            pretending(place / "0.sock", behave),
            asyncio.TaskGroup() as group,
        ):
            group.create_task(client.keep_connected())
            await connected.wait()
            client.give_up("enough")
            given_up.set()
        assert client.state() is EngineState.FAILED


async def test_closing_a_generator_tells_the_host_and_does_not_wait() -> None:
    told: asyncio.Queue[object] = asyncio.Queue()

    async def behave(peer: Peer) -> None:
        peer.send(HELLO)
        async for group in messages(peer, FrameReader(TO_HOST)):
            for message in group:
                told.put_nowait(message)
                if isinstance(message, GenerateCall):
                    peer.send(StartedReply(message.call, SequenceStarted(3)))

    with short_directory() as place:
        async with (
            pretending(place / "0.sock", behave),
            open_host_engine(str(place / "0.sock"), "x") as client,
        ):
            await until(client, EngineState.READY)
            async with asyncio.timeout(PATIENCE), aclosing(client.generate(build_request())) as events:
                await anext(events)
            heard = [await told.get() for _ in range(3)]
            assert heard == [HELLO, GenerateCall(1, build_request()), CancelCall(1)]


async def test_a_sequence_that_is_over_is_not_cancelled() -> None:
    async with open_link(create_brief_engine()) as link:
        assert [event async for event in link.client.generate(build_request())]
        assert link.client.state() is EngineState.READY
        assert not link.client._calls


async def test_a_generator_that_was_never_read_sends_nothing() -> None:
    engine = create_brief_engine()
    async with open_link(engine) as link:
        await link.client.generate(build_request()).aclose()
        await link.client.info()
        assert engine.requests == []


async def test_a_gap_in_the_sequence_ends_the_connection_and_its_calls() -> None:
    async def behave(peer: Peer) -> None:
        peer.send(HELLO)
        await peer.asked()
        peer.send(StartedReply(1, SequenceStarted(3)))
        peer.frame(StepsReply(1, Steps((4,))))  # made and lost
        peer.send(StepsReply(1, Steps((5,))))

    with short_directory() as place:
        async with (
            pretending(place / "0.sock", behave),
            open_host_engine(str(place / "0.sock"), "x") as client,
        ):
            await until(client, EngineState.READY)
            async with asyncio.timeout(PATIENCE):
                assert isinstance(await failure(client.generate(build_request())), EngineDied)


@pytest.mark.parametrize(
    "hello", [Hello(PROTOCOL + 1, antiphon.__version__), Hello(PROTOCOL, antiphon.__version__ + "x")]
)
async def test_a_host_of_another_release_is_given_up_with_a_sentence(hello: Hello) -> None:
    async def behave(peer: Peer) -> None:
        peer.send(hello)
        await peer.ended()

    with short_directory() as place:
        async with (
            pretending(place / "0.sock", behave),
            open_host_engine(str(place / "0.sock"), "x") as client,
        ):
            await until(client, EngineState.FAILED)
            with pytest.raises(EngineUnavailable, match="install the same release"):
                await client.info()


async def test_a_host_that_does_not_begin_with_hello_is_not_believed() -> None:
    hung_up = asyncio.Event()

    async def behave(peer: Peer) -> None:
        peer.send(StartedReply(1, SequenceStarted(3)))
        await peer.ended()
        hung_up.set()

    with short_directory() as place:
        async with (
            pretending(place / "0.sock", behave),
            open_host_engine(str(place / "0.sock"), "x") as client,
        ):
            async with asyncio.timeout(PATIENCE):
                await hung_up.wait()
            assert client.state() is EngineState.STARTING


async def test_a_host_that_greets_and_leaves_is_never_taken_for_ready() -> None:
    greeted = 0

    async def behave(peer: Peer) -> None:
        nonlocal greeted
        peer.send(HELLO)
        peer.writer.close()
        greeted += 1

    with short_directory() as place:
        async with (
            pretending(place / "0.sock", behave),
            open_host_engine(str(place / "0.sock"), "x") as client,
        ):
            async with asyncio.timeout(PATIENCE):
                while greeted < 5:
                    await asyncio.sleep(0.005)
                    if client.state() is EngineState.READY:
                        with pytest.raises(EngineUnavailable):
                            await client.info()


async def test_an_answer_out_of_turn_is_an_error_of_that_call_alone() -> None:
    async def behave(peer: Peer) -> None:
        peer.send(HELLO)
        async for group in messages(peer, FrameReader(TO_HOST)):
            for message in group:
                if not isinstance(message, Hello | CancelCall):
                    peer.send(StartedReply(message.call, SequenceStarted(3)))

    with short_directory() as place:
        async with (
            pretending(place / "0.sock", behave),
            open_host_engine(str(place / "0.sock"), "x") as client,
        ):
            await until(client, EngineState.READY)
            with pytest.raises(EngineError, match="an unexpected StartedReply"):
                await client.info()
            assert client.state() is EngineState.READY


async def test_a_call_that_is_not_answered_ends_at_its_deadline() -> None:
    told: asyncio.Queue[object] = asyncio.Queue()

    async def behave(peer: Peer) -> None:
        peer.send(HELLO)
        async for group in messages(peer, FrameReader(TO_HOST)):
            for message in group:
                told.put_nowait(message)

    with short_directory() as place:
        path = str(place / "0.sock")
        async with pretending(place / "0.sock", behave), asyncio.TaskGroup() as group:
            client = HostTokenEngine(path, "x", call_deadline=0.05)
            keeping = group.create_task(client.keep_connected())
            await until(client, EngineState.READY)
            with pytest.raises(DeadlineExceeded, match=r"within 0\.05 s"):
                await client.tokenize([TextPiece("hello")], False)
            async with asyncio.timeout(PATIENCE):
                while not isinstance(await told.get(), CancelCall):
                    pass
            keeping.cancel()


async def test_a_prompt_too_large_for_a_message_is_refused_alone() -> None:
    async with open_link(create_endless_engine()) as link:
        running = link.client.generate(build_request())
        await anext(running)
        with pytest.raises(InvalidValue, match="too large"):
            await link.client.tokenize([TextPiece("x" * MAX_MESSAGE)], False)
        assert isinstance(await anext(running), Steps)


async def test_a_host_that_stops_reading_gets_no_more_calls() -> None:
    async def behave(peer: Peer) -> None:
        peer.send(HELLO)
        peer.stop_reading()

    async with asyncio.timeout(PATIENCE):
        with short_directory() as place:
            path = str(place / "0.sock")
            async with pretending(place / "0.sock", behave), open_host_engine(path, "x") as client:
                await until(client, EngineState.READY)
                text = [TextPiece("x" * (MAX_MESSAGE // 3))]
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(refused(client.tokenize(text, False))) for _ in range(8)]
                    await await_until(lambda: any(task.done() for task in tasks))
                    for task in tasks:
                        task.cancel()
                assert any(not task.cancelled() and task.result() for task in tasks)
                assert client.state() is EngineState.READY


async def test_what_one_caller_sends_leaves_as_much_room_to_others() -> None:
    """The one that fills its half is told so; another one's goes through, and who finds all full is told
    that it is not his doing."""

    async def behave(peer: Peer) -> None:
        peer.send(HELLO)
        peer.stop_reading()

    async def ask(client: HostTokenEngine, caller: str) -> type[Exception] | None:
        """What a request of a megabyte is refused with; else it waits for ever."""
        request = replace(build_request(), prompt=PromptTokens((70_000,) * 200_000), actor=caller)
        try:
            await anext(client.generate(request))
        except (Overloaded, EngineBusy) as error:
            return type(error)
        return None

    async with asyncio.timeout(6 * PATIENCE):  # many megabytes are encoded
        with short_directory() as place:
            path = str(place / "0.sock")
            async with pretending(place / "0.sock", behave), open_host_engine(path, "x") as client:
                await until(client, EngineState.READY)
                found: list[set[type[Exception] | None]] = []
                counts: list[int] = []
                async with asyncio.TaskGroup() as group:
                    tasks: list[asyncio.Task[type[Exception] | None]] = []
                    for caller in ("first", "second", *map(str, range(8))):
                        mine = [group.create_task(ask(client, caller)) for _ in range(24)]
                        await asyncio.sleep(0.01)
                        found.append({task.result() for task in mine if task.done()})
                        tasks += [task for task in mine if not task.done()]
                        counts.append(sum(not task.done() for task in mine))
                    for task in tasks:
                        task.cancel()
                assert found[0] == {Overloaded} and found[-1] == {EngineBusy}
                assert counts[0] >= 15 and counts[1] >= 5 and counts[-1] == 0
                assert sum(counts[1:]) >= 12, "as much as the first one took, less what one message needs"


async def refused(call: Awaitable[object]) -> bool:
    """Whether the call is refused for what waits before it."""
    try:
        await call
    except EngineBusy:
        return True
    return False


async def test_a_held_sequence_is_cancelled_in_queue_and_in_prefill() -> None:
    held = asyncio.Event()
    engine = ScriptedTokenEngine(Script(hold=Hold(held, after=None)))
    async with open_link(engine) as link, asyncio.timeout(PATIENCE):
        tasks = []
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(failure(link.client.generate(build_request()))) for _ in range(6)]
            while (await link.client.info()).load.queued < 2:
                await asyncio.sleep(0.005)
            for task in tasks:
                task.cancel()
        while (load := (await link.client.info()).load).running or load.queued:
            await asyncio.sleep(0.005)
        assert load.free_sequences == 4
