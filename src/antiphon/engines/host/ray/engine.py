"""A token engine whose sequences run on the replicas of a Ray cluster.

`load` deploys the model; all other methods call its replicas. Ray never cancels a call by itself, and a call
waits for ever while there is no replica. So every call here ends with an explicit cancel, and is refused at
once while there is no replica. The callers own the deadlines.

A sequence whose replica dies raises EngineDied if the sequence had started, and EngineLost if it waited. The
pipeline tries a sequence with EngineLost once more. `deployment` talks to Ray Serve's controller.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from antiphon.domain.request import Constraint, EmbedRequest, Vectors
from antiphon.engines.base import (
    EngineInfo,
    LoadSpec,
    SequenceStarted,
    TextPiece,
    TokenEvent,
    TokenRequest,
    Vocabulary,
)
from antiphon.engines.host.frames import (
    AddAdapterCall,
    CheckCall,
    DoneReply,
    EmbedCall,
    EmbedReply,
    ErrorReply,
    EventReply,
    FinishedReply,
    GenerateCall,
    HostCall,
    InfoCall,
    InfoReply,
    RemoveAdapterCall,
    Reply,
    TokenizePiecesCall,
    TokensReply,
    VocabularyCall,
    VocabularyReply,
)
from antiphon.engines.host.ray.config import DriverConfig
from antiphon.engines.host.ray.deployment import Deployment, build_application_name, open_deployment
from antiphon.engines.host.ray.load_sums import LoadSums, replace_load
from antiphon.engines.host.ray.replica import CALL_NUMBER, decode_replica_reply, decode_reply, encode_call
from antiphon.engines.host.ray.replica_table import ReplicaTable, RoutingKey, build_prefix_keys, get_table
from antiphon.errors import (
    AntiphonError,
    DeadlineExceeded,
    EngineDied,
    EngineError,
    EngineLost,
    EngineUnavailable,
)
from antiphon.telemetry.logs import record

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentResponse, DeploymentResponseGenerator


CALL_DEADLINE = 30.0
"""Seconds for the reply to a call that makes no token. Tokenizing the largest body takes about one second."""

INFO_DEADLINE = 1.0
"""Seconds in which replicas report their load. If a replica is late, its last report counts."""

RETRY_AFTER = 5.0
"""Retry delay in seconds while there is no replica. Ray Serve needs at least this long to start one."""

R = TypeVar("R", TokensReply, VocabularyReply, InfoReply, DoneReply)


class RayTokenEngine:
    """`TokenEngine` over all replicas of one model."""

    def __init__(self, config: DriverConfig) -> None:
        self._config = config
        self._name = config.deployment.name
        self._deployment: Deployment | None = None
        self.table = ReplicaTable()
        """The replicas, and the sequences on each."""
        self._info: EngineInfo | None = None
        self._sums = LoadSums()
        self._vocabulary: Vocabulary | None = None
        self._adapters: dict[str, str] = {}
        """The path of each adapter, by digest."""
        self._sequence_numbers = itertools.count()
        self._streams: dict[int, DeploymentResponseGenerator[bytes]] = {}
        self._open_calls: set[DeploymentResponse[bytes]] = set()
        """The open calls that make no token."""
        self._on_absence: Callable[[str], None] = lambda _: None

    # --- replicas -------------------------------------------------------------------------------------------

    def watch_absence(self, notify: Callable[[str], None]) -> None:
        """Calls `notify` now and at each change of the replicas: with a reason if there is no replica, and
        with an empty text if there is one."""
        self._on_absence = notify
        notify(self._describe_absence())

    def _describe_absence(self) -> str:
        """Returns why no call can be served; empty if calls can be served."""
        if self.table.names:
            return ""
        return f"no replica of {self._name} runs in the cluster; try again shortly"

    def _handle_replica_change(self) -> None:
        """Handles a change of the set of replicas. If none is left, cancels the calls that wait for a
        replica, because they would wait for ever."""
        names = self.table.names
        self._sums.set_replicas(names)
        record("replicas_changed", model=self._name, replicas=len(names))
        self._on_absence(self._describe_absence())
        if not names:
            for number, stream in tuple(self._streams.items()):
                if number not in self.table.assigned:
                    stream.cancel()
            for call in tuple(self._open_calls):
                call.cancel()

    def _require_deployment(self) -> Deployment:
        """Returns the deployment. Raises EngineUnavailable if the deployment has no replica."""
        if self._deployment is None or not self.table.names:
            raise EngineUnavailable(self._describe_absence(), retry_after=RETRY_AFTER)
        return self._deployment

    # --- calls ----------------------------------------------------------------------------------------------

    async def _ask(self, call: HostCall, reply_type: type[R]) -> R:
        """Sends a call that makes no token to one replica, and returns its reply."""
        response = self._require_deployment().ask_handle.remote(encode_call(call))
        self._open_calls.add(response)
        try:
            async with asyncio.timeout(CALL_DEADLINE):
                frame = await response
        except TimeoutError:
            raise DeadlineExceeded(
                f"the replica of {self._name} did not answer within {CALL_DEADLINE:g} s"
            ) from None
        except (Exception, asyncio.CancelledError) as problem:  # noqa: BLE001 - Ray raises errors of any kind
            raise self._map_error(problem, is_started=False) from None
        finally:
            self._open_calls.discard(response)
            response.cancel()
        return self._require_reply(decode_replica_reply(frame).reply, reply_type)

    async def _ask_all(self, call: HostCall, seconds: float) -> list[tuple[str, Reply]]:
        """Sends a call to all replicas, and returns their replies, each with its replica. Returns an empty
        list if any replica is late, because Ray answers for all of them at once."""
        response = self._require_deployment().ask_handle.broadcast("ask", encode_call(call))
        try:
            async with asyncio.timeout(seconds):
                results = await response.results_async(return_exceptions=True)
        except TimeoutError:
            return []
        except (Exception, asyncio.CancelledError) as problem:  # noqa: BLE001 - Ray raises errors of any kind
            raise self._map_error(problem, is_started=False) from None
        replica_replies = [
            decode_replica_reply(replica_reply)
            for replica_reply in results
            if isinstance(replica_reply, bytes)
        ]
        return [(replica_reply.replica, replica_reply.reply) for replica_reply in replica_replies]

    def _require_reply(self, reply: Reply, reply_type: type[R]) -> R:
        """Returns a reply of the expected type. Raises the error that it carries, or EngineError."""
        if isinstance(reply, ErrorReply):
            raise reply.value.to_exception()
        if not isinstance(reply, reply_type):
            raise self._build_protocol_error(reply)
        return reply

    def _build_protocol_error(self, reply: Reply) -> EngineError:
        """Builds the error of a call that got a reply of the wrong type."""
        return EngineError(f"a replica of {self._name} answered with {type(reply).__name__}")

    async def _stream(
        self, call: HostCall, key: RoutingKey, adapter: str = ""
    ) -> AsyncGenerator[Reply, None]:
        """Sends a call to the replica that its key prefers, and yields the replies. Closing the generator
        cancels the call. `adapter`: the path of the adapter that the call needs."""
        deployment, number = self._require_deployment(), next(self._sequence_numbers)
        self.table.open(number, key)
        stream = self._streams[number] = deployment.generate_handle.remote(encode_call(call, adapter), number)
        is_started = False
        try:
            while True:
                try:
                    frame = await anext(stream)
                except (Exception, asyncio.CancelledError) as problem:  # noqa: BLE001 - Ray raises any kind
                    raise self._map_error(problem, is_started) from None
                reply = decode_reply(frame)
                if isinstance(reply, ErrorReply):
                    raise reply.value.to_exception()
                is_started = True
                yield reply
                if isinstance(reply, FinishedReply | DoneReply):
                    return
        finally:
            stream.cancel()
            del self._streams[number]
            self.table.close(number)

    def _map_error(self, problem: BaseException, is_started: bool) -> BaseException:
        """Maps an exception of Ray to the caller's error. Every such exception means that the replica is
        gone. Returns a cancellation of this task unchanged."""
        task = asyncio.current_task()
        if isinstance(problem, asyncio.CancelledError) and task is not None and task.cancelling():
            return problem
        cause = f"{type(problem).__name__}: {problem}"
        record("replica_lost", logging.WARNING, model=self._name, started=is_started, problem=cause[:200])
        if is_started:
            return EngineDied(
                f"the replica of {self._name} ended while it was generating this answer; try again",
                retry_after=RETRY_AFTER,
                cause=cause,
            )
        return EngineLost(
            f"the replica of {self._name} ended while this request waited for it; try again",
            retry_after=RETRY_AFTER,
            cause=cause,
        )

    # --- the interface --------------------------------------------------------------------------------------

    async def load(self, spec: LoadSpec) -> EngineInfo:
        """Deploys the model, and waits for its first replica. Raises a StartupError."""
        self.table = get_table(build_application_name(self._name))
        self.table.max_sequences = spec.sequences
        self.table.on_change = self._handle_replica_change
        self._deployment = deployment = await open_deployment(self._config)
        while True:
            await deployment.wait_for_replica(self.table)
            with suppress(EngineUnavailable):  # the replica ended again; the next wait raises its reason
                self._info = (await self._ask(InfoCall(CALL_NUMBER), InfoReply)).value
                return self._info

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        return (await self._ask(TokenizePiecesCall(CALL_NUMBER, tuple(pieces), add_bos), TokensReply)).value

    async def vocabulary(self) -> Vocabulary:
        """Returns the table of token ids, which is the same in all replicas."""
        if self._vocabulary is None:
            self._vocabulary = (await self._ask(VocabularyCall(CALL_NUMBER), VocabularyReply)).value
        return self._vocabulary

    async def info(self) -> EngineInfo:
        """Returns the model's facts, and the load of all replicas together. If a replica does not
        answer in time, the last report of each replica counts."""
        if self._info is None:
            raise EngineUnavailable(self._describe_absence(), retry_after=RETRY_AFTER)
        with suppress(AntiphonError):
            for replica, reply in await self._ask_all(InfoCall(CALL_NUMBER), INFO_DEADLINE):
                if isinstance(reply, InfoReply):
                    self._sums.note(replica, reply.value.load)
        return replace_load(self._info, self._sums.sum(), max(1, len(self.table.names)))

    async def check(self, constraint: Constraint) -> None:
        await self._ask(CheckCall(CALL_NUMBER, constraint), DoneReply)

    async def add_adapter(self, digest: str, path: str) -> None:
        """Makes the adapter at `path` usable; every machine must have the file there. A replica that starts
        later loads the adapter when a sequence needs it."""
        call = AddAdapterCall(CALL_NUMBER, digest, path)
        replies = await self._ask_all(call, CALL_DEADLINE)
        if not replies:
            await self._ask(call, DoneReply)
        for _, reply in replies:
            self._require_reply(reply, DoneReply)
        self._adapters[digest] = path

    async def remove_adapter(self, digest: str) -> None:
        self._adapters.pop(digest, None)
        with suppress(EngineUnavailable):
            await self._ask_all(RemoveAdapterCall(CALL_NUMBER, digest), CALL_DEADLINE)

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        path = self._adapters.get(request.adapter, "") if request.adapter else ""
        stream = self._stream(GenerateCall(CALL_NUMBER, request), build_routing_key(request), path)
        try:
            async for reply in stream:
                if not isinstance(reply, EventReply):
                    raise self._build_protocol_error(reply)
                yield reply.value
        finally:
            await stream.aclose()

    async def embed(self, request: EmbedRequest) -> AsyncGenerator[SequenceStarted | Vectors, None]:
        stream = self._stream(EmbedCall(CALL_NUMBER, request), RoutingKey())
        try:
            async for reply in stream:
                if isinstance(reply, DoneReply):
                    return
                if not isinstance(reply, EmbedReply):
                    raise self._build_protocol_error(reply)
                yield reply.value
        finally:
            await stream.aclose()

    async def aclose(self) -> None:
        """Cancels every sequence. The replicas stay, for other servers of the cluster."""
        for stream in tuple(self._streams.values()):
            stream.cancel()


def build_routing_key(request: TokenRequest) -> RoutingKey:
    """Builds the routing key of a sequence. A scored prompt has no prefix keys, since it is always
    computed."""
    adapter = request.adapter or ""
    group = f"group {request.actor} {request.group}".encode() if request.group else b""
    if request.prompt_logprobs is not None:
        return RoutingKey((), adapter, group)
    return RoutingKey(build_prefix_keys(request.prompt.ids, adapter, request.cache_salt), adapter, group)
