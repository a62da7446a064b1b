"""The client of an engine in another process: a `TokenEngine` whose every call crosses the socket.

The client connects by itself, and connects again after the host's process died. A lost connection
ends calls at once. A sequence that had started gets EngineDied. A queued sequence gets EngineLost, which
`pipeline.open_route` tries once more. A new call without a connection gets EngineUnavailable. After `retire`
these errors name the reload.
The client starts no process and keeps no vocabulary in memory; its users load the vocabulary once for each
`generation`.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from antiphon.domain.media import Medium, MediumShape
from antiphon.domain.request import Constraint, EmbedRequest, Vectors
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import (
    EngineInfo,
    EngineState,
    LoadSpec,
    MediumLayout,
    SequenceStarted,
    TextPiece,
    TokenEvent,
    TokenRequest,
    Vocabulary,
)
from antiphon.engines.host.control import EngineStateNotice
from antiphon.engines.host.frames import (
    TO_CLIENT,
    AbsenceNotice,
    AddAdapterCall,
    CancelCall,
    CheckCall,
    DoneReply,
    EmbedCall,
    EmbedReply,
    EventReply,
    FinishedReply,
    GenerateCall,
    HeldReply,
    HoldCall,
    HostCall,
    InfoCall,
    InfoReply,
    LayOutCall,
    LayoutsReply,
    MediumPart,
    RemoveAdapterCall,
    Reply,
    ScoresReply,
    StartedReply,
    StepsReply,
    ToClient,
    TokenizePiecesCall,
    TokensReply,
    VectorsReply,
    VocabularyCall,
    VocabularyReply,
)
from antiphon.engines.host.parking import Parking
from antiphon.engines.host.pending_calls import (
    AdapterReload,
    PendingCall,
    PendingReloads,
    require_send_buffer,
)
from antiphon.errors import (
    AntiphonError,
    DeadlineExceeded,
    EngineBusy,
    EngineDied,
    EngineError,
    EngineLost,
    EngineUnavailable,
    InvalidValue,
    LoadError,
    ModelNotFound,
)
from antiphon.processes.ipc import Channel, FrameError, FrameReader, Hello, Incompatible
from antiphon.task_group import task_group
from antiphon.telemetry.logs import record

FIRST_PAUSE = 0.02
"""Seconds before the first attempt to connect again. An attempt on a local socket costs microseconds."""

LONGEST_PAUSE = 0.2
"""The most seconds between later attempts. A model takes much longer to load."""

GREETING_DEADLINE = 5.0
"""Seconds for the host's Hello. A host listens only once its engine is ready, so only a suspended host takes
this long."""

CALL_DEADLINE = 30.0
"""Seconds for the reply to a call that makes no token. Tokenizing the largest body takes about one second."""

RETRY_AFTER = 1.0
"""Retry delay in seconds for callers. A host with a small model needs less time to start again."""

PART_BYTES = 4 << 20
"""The most bytes of a medium in one message. Between two messages, both event loops serve other requests."""


class Retirement(Struct, frozen=True):
    """A reload's decision that a host serves no new requests."""

    model: str
    is_removed: bool
    """Whether the reload removed the model. Otherwise another host serves the model now."""

    def build_death_error(self) -> AntiphonError:
        """Builds the error of a sequence that runs when the host ends."""
        if self.is_removed:
            return ModelNotFound(self._explain(), param="model")
        return EngineDied(self._explain(), retry_after=RETRY_AFTER)

    def build_absence_error(self) -> EngineUnavailable:
        """Builds the error of any other call that needs the host after its end."""
        return EngineUnavailable(self._explain(), retry_after=None if self.is_removed else RETRY_AFTER)

    def _explain(self) -> str:
        """Says what the reload did, and what the caller can do."""
        if self.is_removed:
            return (
                f"a reload removed the model {self.model}, and its engine ended before this answer was"
                " complete; choose another model"
            )
        return (
            f"a reload replaced the engine of {self.model}, and the old engine ended before this answer was"
            " complete; try again"
        )


R = TypeVar("R", TokensReply, VocabularyReply, InfoReply, DoneReply, LayoutsReply)


class HostTokenEngine:
    """`TokenEngine` over the socket of one engine host. `keep_connected` must run beside it, in a task
    group."""

    def __init__(
        self,
        path: str,
        name: str,
        call_deadline: float = CALL_DEADLINE,
        parking: Parking | None = None,
    ) -> None:
        """`parking`: the state of a model that is loaded on request; None for a model that is always
        loaded."""
        self._parking = parking
        self._path = path
        self._name = name
        self._call_deadline = call_deadline
        self._channel: Channel[ToClient] | None = None
        self._calls: dict[int, PendingCall] = {}
        self._adapters: dict[str, str] = {}
        """The path of each added adapter, by digest."""
        self._pending_reloads = PendingReloads(self._reload_adapter)
        """The adapters that must be sent again, because the restarted host refused them or could not be
        reached."""
        self._call_numbers = itertools.count(1)
        self._medium_lock = asyncio.Lock()
        """Held while a medium is sent."""
        self._final_error: str | None = None
        """The message for every later call, once the host will not be started again; None before."""
        self._retirement: Retirement | None = None
        """Set once a reload has removed or replaced the host."""
        self._absence_reason = ""
        """Why the connected host can serve no call now; empty if it can."""
        self._is_connected_or_failed = asyncio.Event()
        """Set while there is a connection, and for ever once `_final_error` is set."""
        self.generation = 0
        """The number of connections so far. Facts about the host's model are valid only while this
        number stays the same."""

    # --- state ----------------------------------------------------------------------------------------------

    def state(self) -> EngineState:
        """READY while the connection is open, the host has sent its Hello and can serve calls."""
        if self._final_error is not None:
            return EngineState.FAILED
        if self._channel is not None:
            return EngineState.RESTARTING if self._absence_reason else EngineState.READY
        if self._parking is not None:
            return self._parking.state
        return EngineState.RESTARTING if self.generation else EngineState.STARTING

    def is_pending_reload(self, digest: str) -> bool:
        """Whether the restarted host still lacks an adapter that it had before. The client sends the adapter
        again after pauses, until the host has it."""
        return digest in self._pending_reloads

    def note_adapters(self, paths: Mapping[str, str]) -> None:
        """Notes the paths of the adapters that the host should have, by digest. Any process may have added
        them. The client sends them to a restarted host."""
        self._adapters = dict(paths)
        self._pending_reloads.drop_except(paths.keys())

    def is_busy(self) -> bool:
        """Whether a call runs."""
        return bool(self._calls)

    def give_up(self, message: str) -> None:
        """Ends the connection and all its calls, and refuses every later call with this message, because the
        host will not be started again."""
        self._final_error = message
        self._is_connected_or_failed.set()
        if self._channel is not None:
            self._channel.cut(message)

    def retire(self, retirement: Retirement) -> None:
        """Notes that a reload has removed or replaced the host. Its calls continue until the host ends."""
        self._retirement = retirement

    def note_state(self, notice: EngineStateNotice) -> None:
        """Notes the state of a model that is loaded on request."""
        if self._parking is not None:
            self._parking.note(notice)

    def request_load(self) -> None:
        """Has the model loaded if it is parked."""
        if self._parking is not None:
            self._parking.request_load()

    async def keep_connected(self) -> None:
        """Connects, and connects again after each lost connection, until `give_up` or `aclose` is called.
        Does not try while the model is parked."""
        pause = FIRST_PAUSE
        while self._final_error is None:
            if self._parking is not None:
                await self._parking.wait_for_load()
            try:
                await self._run_connection()
                pause = FIRST_PAUSE
            except Incompatible as problem:
                self.give_up(f"the engine of {self._name} cannot be used: {problem}")
            except (OSError, TimeoutError):
                pause = min(pause * 2, LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _run_connection(self) -> None:
        """Opens a connection, and waits until it ends. Raises OSError, TimeoutError or Incompatible if no
        connection is made."""
        ended = asyncio.Event()

        def on_end(reason: str) -> None:
            """Notes that this connection has ended. If its calls may be running, ends them with an error."""
            ended.set()
            if self._channel is channel:
                self._fail_calls(reason)

        channel: Channel[ToClient] = Channel(FrameReader(TO_CLIENT), self._receive, on_end)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, self._path)
        try:
            async with asyncio.timeout(GREETING_DEADLINE):
                await channel.greeted
            if ended.is_set() or self._final_error is not None:
                raise ConnectionAbortedError("the connection ended at once")
            self._channel = channel
            self._reload_adapters()
            self.generation += 1
            self._is_connected_or_failed.set()
            record("engine_connected", logging.DEBUG, model=self._name, generation=self.generation)
            await ended.wait()
        finally:
            channel.cut("this side closed")

    def _reload_adapters(self) -> None:
        """Sends the adapters to a restarted host, before any other call."""
        for digest in self._adapters:
            self._reload_adapter(digest)

    def _reload_adapter(self, digest: str) -> None:
        """Sends an adapter to the host again, if the host should still have it. If it cannot be sent now,
        notes it for a later attempt."""
        if (path := self._adapters.get(digest)) is None:
            return
        reload = AdapterReload(partial(self.note_refused, digest), partial(self._note_loaded, digest))
        try:
            self._send_call(partial(_build_add_adapter, digest=digest, path=path), reload)
        except (EngineUnavailable, EngineBusy) as error:
            self.note_refused(digest, error.message)

    def note_refused(self, digest: str, reason: str) -> None:
        """Notes that the host lacks an adapter that it should have, with the reason for the log. The client
        sends the adapter again after a pause."""
        if digest in self._adapters and self._pending_reloads.add(digest):
            record("adapter_lost", logging.WARNING, model=self._name, digest=digest, reason=reason)

    def _note_loaded(self, digest: str) -> None:
        """Notes that the host has the adapter again."""
        if self._pending_reloads.discard(digest):
            record("adapter_back", model=self._name, digest=digest)

    def _fail_calls(self, reason: str) -> None:
        """Forgets the connection, and ends every call: with EngineDied if the call has started, otherwise
        with EngineLost."""
        self._channel = None
        self._absence_reason = ""
        if self._final_error is None:
            self._is_connected_or_failed.clear()
        self._pending_reloads.clear()
        calls, self._calls = self._calls, {}
        is_expected = any((self._final_error is not None, self._parking, self._retirement))
        level = logging.DEBUG if is_expected else logging.WARNING
        record("engine_lost", level, model=self._name, reason=reason, calls=len(calls))
        for call in calls.values():
            call.push(self._build_death_error(reason) if call.has_started else self._build_lost_error(reason))

    def _build_absence_error(self) -> EngineUnavailable:
        """Builds the error of a call while there is no connection, or after the final error."""
        if self._retirement is not None:
            return self._retirement.build_absence_error()
        if self._final_error is not None:
            return EngineUnavailable(self._final_error)
        if self._parking is not None:
            return self._parking.build_absence_error()
        status = "is starting again" if self.generation else "is starting"
        return EngineUnavailable(
            f"the engine of {self._name} {status}; try again shortly", retry_after=RETRY_AFTER
        )

    def _build_lost_error(self, reason: str) -> EngineUnavailable:
        """Builds the error of a call that was sent and had not started when the connection was lost."""
        if self._final_error is not None or self._retirement is not None:
            return self._build_absence_error()
        return EngineLost(
            f"the engine of {self._name} ended while this request waited for it; try again",
            retry_after=RETRY_AFTER,
            cause=reason,
        )

    def _build_death_error(self, reason: str) -> AntiphonError:
        """Builds the error of a sequence that had started when the connection was lost."""
        if self._retirement is not None:
            return self._retirement.build_death_error()
        return EngineDied(
            f"the engine of {self._name} ended while it was generating this answer; try again",
            retry_after=RETRY_AFTER,
            cause=reason,
        )

    # --- calls ----------------------------------------------------------------------------------------------

    def require_connection(self) -> Channel[ToClient]:
        """Returns the connection to a host that can serve calls. Raises EngineUnavailable."""
        if self._channel is None or self._final_error is not None:
            raise self._build_absence_error()
        if self._absence_reason:
            raise EngineUnavailable(self._absence_reason, retry_after=RETRY_AFTER)
        return self._channel

    def _send_call(
        self, build_call: Callable[[int], HostCall], call: PendingCall | None = None, caller: str = ""
    ) -> tuple[int, PendingCall]:
        """Sends a call. Returns its number, and the object that collects its replies. Raises
        EngineUnavailable, EngineBusy, Overloaded or InvalidValue if nothing was sent. `call`: collects the
        replies instead of a new PendingCall. `caller`: the actor whose unsent bytes the call counts to."""
        channel = self.require_connection()
        call_number, call = next(self._call_numbers), call or PendingCall()
        try:
            encoded = channel.encode(build_call(call_number))
        except FrameError:
            raise InvalidValue(
                f"the request is too large to send to the engine of {self._name}; send a shorter one"
            ) from None
        require_send_buffer(self._name, channel.unsent, channel.count_unsent(caller), len(encoded))
        channel.put_encoded(encoded, caller)
        self._calls[call_number] = call
        return call_number, call

    def _forget_call(self, call_number: int) -> None:
        """Forgets a call. If its last reply has not arrived, tells the host to cancel it."""
        if self._calls.pop(call_number, None) is not None and self._channel is not None:
            self._channel.put(CancelCall(call_number))

    def _receive(self, message: ToClient) -> None:
        """Passes a reply to its call, and forgets the call after its last reply. Raises FrameError for a
        second Hello."""
        if isinstance(message, Hello):
            raise FrameError("the host said Hello twice")
        if isinstance(message, AbsenceNotice):
            self._absence_reason = message.reason
            return
        if isinstance(message, StartedReply | ScoresReply | StepsReply | VectorsReply | HeldReply):
            call = self._calls.get(message.call)
            if call is not None:
                call.has_started = not isinstance(message, HeldReply)
                call.push(message)
        elif (last_call := self._calls.pop(message.call, None)) is not None:
            last_call.push(message)

    async def _ask(self, build_call: Callable[[int], HostCall], reply_type: type[R]) -> R:
        """Sends a call and returns its only reply. Raises the host's error, DeadlineExceeded, or an
        EngineError for an unexpected reply."""
        call_number, call = self._send_call(build_call)
        try:
            async with asyncio.timeout(self._call_deadline):
                reply = await call.next()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the engine of {self._name} did not answer within {self._call_deadline:g} s"
            ) from None
        finally:
            self._forget_call(call_number)
        if not isinstance(reply, reply_type):
            raise self._build_protocol_error(reply)
        return reply

    def _build_protocol_error(self, reply: Reply) -> EngineError:
        """Builds the error of a call that got a reply of the wrong type."""
        return EngineError(f"the engine of {self._name} answered with an unexpected {type(reply).__name__}")

    # --- the interface --------------------------------------------------------------------------------------

    async def load(self, spec: LoadSpec) -> EngineInfo:
        """Waits until the host has loaded the model that the supervisor configured. Raises LoadError if the
        host will not be started again."""
        while self._channel is None:
            await self._is_connected_or_failed.wait()
            if self._final_error is not None:
                raise LoadError(self._final_error)
        return await self.info()

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        piece_tuple = tuple(pieces)
        return (
            await self._ask(
                lambda call_number: TokenizePiecesCall(call_number, piece_tuple, add_bos), TokensReply
            )
        ).value

    async def vocabulary(self) -> Vocabulary:
        return (await self._ask(VocabularyCall, VocabularyReply)).value

    async def info(self) -> EngineInfo:
        return (await self._ask(InfoCall, InfoReply)).value

    async def check(self, constraint: Constraint) -> None:
        await self._ask(lambda call_number: CheckCall(call_number, constraint), DoneReply)

    async def add_adapter(self, digest: str, path: str) -> None:
        await self._ask(lambda call_number: AddAdapterCall(call_number, digest, path), DoneReply)
        self._adapters[digest] = path
        self._pending_reloads.discard(digest)

    async def remove_adapter(self, digest: str) -> None:
        self._adapters.pop(digest, None)
        self._pending_reloads.discard(digest)
        await self._ask(lambda call_number: RemoveAdapterCall(call_number, digest), DoneReply)

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Sends the request to the host process and yields the events of its replies."""
        call_number, call = self._send_call(
            lambda call_number: GenerateCall(call_number, request), caller=request.actor
        )
        try:
            while True:
                reply = await call.next()
                if not isinstance(reply, EventReply):
                    raise self._build_protocol_error(reply)
                yield reply.value
                if isinstance(reply, FinishedReply):
                    return
        finally:
            self._forget_call(call_number)

    async def lay_out(self, shapes: Sequence[MediumShape]) -> tuple[MediumLayout, ...]:
        shape_tuple = tuple(shapes)
        return (await self._ask(lambda call_number: LayOutCall(call_number, shape_tuple), LayoutsReply)).value

    @asynccontextmanager
    async def hold(self, medium: Medium, cache_salt: str = "") -> AsyncIterator[None]:
        """Has a medium held by the host process while the context lasts. If the host needs its data, sends
        them in parts, and one medium after another, because a few large ones would fill the buffer."""
        data, named = medium.data, replace(medium, data=b"")
        async with self._medium_lock:
            channel = self.require_connection()
            call_number, call = self._send_call(lambda number: HoldCall(number, named, len(data), cache_salt))
            try:
                while True:
                    async with asyncio.timeout(self._call_deadline):
                        reply = await call.next()
                    if not isinstance(reply, HeldReply):
                        raise self._build_protocol_error(reply)
                    if (sent := reply.byte_count) == len(data):
                        break
                    channel.put(MediumPart(call_number, data[sent : sent + PART_BYTES]))
            except BaseException as error:
                self._forget_call(call_number)
                if isinstance(error, TimeoutError):
                    raise DeadlineExceeded(
                        f"the engine of {self._name} did not take an image within {self._call_deadline:g} s"
                    ) from None
                raise
        try:
            yield
        finally:
            self._forget_call(call_number)

    async def embed(self, request: EmbedRequest) -> AsyncGenerator[SequenceStarted | Vectors, None]:
        call_number, call = self._send_call(
            lambda call_number: EmbedCall(call_number, request), caller=request.actor
        )
        try:
            while True:
                reply = await call.next()
                if isinstance(reply, DoneReply):
                    return
                if not isinstance(reply, EmbedReply):
                    raise self._build_protocol_error(reply)
                yield reply.value
        finally:
            self._forget_call(call_number)

    async def aclose(self) -> None:
        """Ends the connection, and with it every sequence of this client."""
        self.give_up(f"the engine of {self._name} is closed")


def _build_add_adapter(call_number: int, digest: str, path: str) -> HostCall:
    """Builds the call that adds an adapter, with the call number as the first argument."""
    return AddAdapterCall(call_number, digest, path)


class HostGroup:
    """An `AdapterEngine` over all hosts of a model, so that every host has the same adapters."""

    def __init__(self, hosts: Sequence[HostTokenEngine]) -> None:
        """`hosts`: at least one."""
        self._hosts = tuple(hosts)

    async def add_adapter(self, digest: str, path: str) -> None:
        """Makes an adapter usable on every host that has not failed for good. If one of them cannot serve
        calls, raises EngineUnavailable and changes no host."""
        hosts = [host for host in self._hosts if host.state() is not EngineState.FAILED] or self._hosts
        for host in hosts:
            host.require_connection()
        for host in hosts:
            await host.add_adapter(digest, path)

    async def remove_adapter(self, digest: str) -> None:
        """Removes the adapter from every host, so that new sequences cannot use it. A host that is not
        connected does not get the adapter again. If a host fails otherwise, removes the adapter from the
        other hosts and then raises the first error."""
        problems: list[AntiphonError] = []
        for host in self._hosts:
            try:
                await host.remove_adapter(digest)
            except EngineUnavailable:
                continue
            except AntiphonError as problem:
                problems.append(problem)
        if problems:
            raise problems[0]

    def note_adapters(self, paths: Mapping[str, str]) -> None:
        """Notes the adapters of all hosts, by digest."""
        for host in self._hosts:
            host.note_adapters(paths)

    def note_refused(self, digest: str, reason: str) -> None:
        """Notes that the hosts refuse an adapter that they should have."""
        for host in self._hosts:
            host.note_refused(digest, reason)


@asynccontextmanager
async def open_host_engine(path: str, name: str) -> AsyncIterator[HostTokenEngine]:
    """Connects to the engine host of a socket, and keeps the connection while the context lasts."""
    engine = HostTokenEngine(path, name)
    async with task_group() as tasks:
        connection_task = tasks.create_task(engine.keep_connected())
        try:
            yield engine
        finally:
            await engine.aclose()
            connection_task.cancel()
