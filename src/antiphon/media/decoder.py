"""Has a process of its own decode images and recordings, and returns what an engine takes.

The first file starts a process, and a second one starts only if two files come at once. Callers take turns.
If something kills a process, the one request whose file it had gets an error, and the next file starts
another process.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from contextlib import suppress
from importlib.util import find_spec

import msgspec

from antiphon.domain.context import Clock
from antiphon.domain.fair_queue import FairSemaphore, QueueLimits
from antiphon.domain.media import MOST_PIXELS, Medium, build_picture, build_recording
from antiphon.domain.values import Struct
from antiphon.errors import InvalidValue, ServerBusy
from antiphon.media.decoding_process import (
    LENGTHS_BYTES,
    MAX_HEADER_BYTES,
    PIPE_BYTES,
    Job,
    Reply,
    build_frame_start,
)
from antiphon.media.facts import MAX_FILE_BYTES, Reason, Refusal
from antiphon.processes.sandbox import INTERPRETER_VARIABLES, ONE_THREAD

MAX_PROCESSES = 2
"""The most decoding processes of one HTTP process."""

START_SECONDS = 30.0
"""Seconds for the start of a process. It runs only our own code, so it is slow only on a busy machine."""

JOB_SECONDS = 40.0
"""Seconds for one file. The process ends a job earlier, unless the machine is too busy."""

RETRY_AFTER = 5.0
"""The retry delay for callers in seconds, if the machine is too busy."""

CHUNK_BYTES = 1 << 18
"""Bytes of a file that are written at once. Other requests run between two writes."""

QUEUE_LIMITS = QueueLimits(
    MAX_PROCESSES, 256, queue_per_actor=64, item_name="images and recordings", seconds_per_item=0.05
)

PACKAGES = ("PIL", "miniaudio")
"""What the extra `media` installs."""


def has_extra() -> bool:
    """Whether the packages of the extra `media` are installed."""
    return all(find_spec(package) is not None for package in PACKAGES)


class MediaFile(Struct, frozen=True):
    """A caller's file."""

    field: str
    """The caller's name of the part, for errors."""
    data: str | bytes
    """The file in base64, or its bytes."""
    declared: str = ""
    """The media type that the caller says; empty if it says none."""


class MediaDecoder:
    """Decodes files in at most MAX_PROCESSES processes. Belongs to one event loop."""

    def __init__(self) -> None:
        self._places = FairSemaphore(QUEUE_LIMITS)
        self._idle: list[Process] = []

    async def decode_image(
        self, file: MediaFile, actor: str, clock: Clock, most_pixels: int = MOST_PIXELS
    ) -> Medium:
        """Returns the picture of a file, with at most `most_pixels` pixels. Raises InvalidValue, whose
        sentence names the part, or an error of a busy server."""
        job = Job(True, file.declared, isinstance(file.data, str), most_pixels=most_pixels)
        reply, pixels = await self._decode(file, job, actor, clock)
        try:
            return await asyncio.to_thread(build_picture, reply.width, reply.height, pixels)
        except ValueError:  # the file has made its process say something else
            raise _build_error(file, Refusal(Reason.DAMAGED)) from None

    async def decode_recording(self, file: MediaFile, actor: str, clock: Clock, rate: int) -> Medium:
        """Returns the recording of a file, with `rate` samples for each second. Raises as `decode_image`."""
        job = Job(False, file.declared, isinstance(file.data, str), rate=rate)
        _, samples = await self._decode(file, job, actor, clock)
        try:
            return await asyncio.to_thread(build_recording, samples)
        except ValueError:
            raise _build_error(file, Refusal(Reason.DAMAGED)) from None

    async def start(self) -> None:
        """Starts a process before the first file comes. Raises ServerBusy if it does not start."""
        self._idle.append(await self._take_process())

    async def aclose(self) -> None:
        """Ends the idle processes."""
        while self._idle:
            await _end(self._idle.pop())

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the idle processes."""
        return tuple(process.pid for process in self._idle)

    async def _decode(self, file: MediaFile, job: Job, actor: str, clock: Clock) -> tuple[Reply, bytes]:
        """Returns the reply of a process with its raw bytes. Raises InvalidValue for a refusal."""
        size = len(file.data) * 3 // 4 if isinstance(file.data, str) else len(file.data)
        if size > MAX_FILE_BYTES:
            raise InvalidValue(
                f"{file.field} has {size:,} bytes, and {MAX_FILE_BYTES:,} are the most; send it smaller",
                param=file.field,
            )
        async with self._places.hold(actor, clock):
            process = await self._take_process()
            try:
                async with asyncio.timeout(JOB_SECONDS):
                    reply, result = await _exchange(process, job, file.data)
            except TimeoutError:
                await _end(process)
                raise _build_busy_error(f"it had no result within {JOB_SECONDS:g} s") from None
            except (EOFError, OSError, msgspec.MsgspecError):
                await _end(process)
                raise _build_busy_error(f"it ended with status {process.returncode}") from None
            except BaseException:
                await _end(process)
                raise
            self._idle.append(process)
        if reply.refusal is not None:
            raise _build_error(file, reply.refusal)
        return reply, result

    async def _take_process(self) -> Process:
        """Returns a process that waits for a job. Raises ServerBusy if none can be started."""
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
            await _end(process)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "antiphon.media.decoding_process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=PIPE_BYTES,
                env={name: value for name, value in os.environ.items() if name in INTERPRETER_VARIABLES}
                | ONE_THREAD,
                start_new_session=True,  # its children are in its group, and end with it
            )
        except OSError as problem:
            raise _build_busy_error(f"it cannot be started: {problem.strerror}") from None
        try:
            async with asyncio.timeout(START_SECONDS):
                await _read_reply(process, 0)
        except (TimeoutError, EOFError, OSError, msgspec.MsgspecError):
            await _end(process)
            raise _build_busy_error(f"it did not start; its status is {process.returncode}") from None
        except BaseException:
            await _end(process)
            raise
        return process


async def _exchange(process: Process, job: Job, data: str | bytes) -> tuple[Reply, bytes]:
    """Sends a job and returns the reply. Raises EOFError or OSError if the process ends, and MsgspecError for
    an impossible reply."""
    if process.stdin is None or process.stdin.is_closing():
        raise EOFError
    process.stdin.write(build_frame_start(job, len(data)))
    for start in range(0, len(data), CHUNK_BYTES):
        chunk = data[start : start + CHUNK_BYTES]
        process.stdin.write(chunk.encode("ascii") if isinstance(chunk, str) else chunk)
        await process.stdin.drain()
    return await _read_reply(process, job.max_result)


async def _read_reply(process: Process, max_result: int) -> tuple[Reply, bytes]:
    """Returns the next reply with its raw bytes."""
    if process.stdout is None:
        raise EOFError
    lengths = await process.stdout.readexactly(LENGTHS_BYTES)
    header_bytes, result_bytes = int.from_bytes(lengths[:4], "big"), int.from_bytes(lengths[4:], "big")
    if header_bytes > MAX_HEADER_BYTES or result_bytes > max_result:
        raise EOFError
    reply = msgspec.json.decode(await process.stdout.readexactly(header_bytes), type=Reply)
    return reply, await process.stdout.readexactly(result_bytes)


async def _end(process: Process) -> None:
    """Kills a process and its children, and waits until they have ended and the pipes are closed."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:
        process.stdin.close()
    await process.communicate()  # an exit may come before the end of the output


def _build_error(file: MediaFile, refusal: Refusal) -> InvalidValue:
    """Returns the error for a file that is refused."""
    return InvalidValue(f"{file.field} {refusal.describe(file.declared)}", param=file.field)


def _build_busy_error(cause: str) -> ServerBusy:
    """Returns the error for a decoding process that ended or did not start. The file is not the reason: it
    would have ended a child of the process only."""
    return ServerBusy(
        "the process that decodes images and recordings ended; try again",
        retry_after=RETRY_AFTER,
        cause=f"the decoding process: {cause}",
    )
