"""The decoding process: decodes callers' images and recordings, each in a child of its own with hard limits.

The decoder starts it as `python -m antiphon.media.decoding_process`. It imports the libraries once and reads
no caller's file itself: it forks a child for each job. So a picture costs milliseconds, what one file breaks
is gone with its child, and no file meets what another one left behind.

Both sides send frames: the lengths of two parts, JSON, and raw bytes. The JSON of a job is a `Job`, and that
of its reply a `Reply`.
"""

import base64
import os
import resource
import signal
import sys

import msgspec

from antiphon.domain.values import Struct
from antiphon.media.facts import MAX_SECONDS, PIXEL_BYTES, SAMPLE_BYTES, FileRefused, Reason, Refusal

LENGTHS_BYTES = 8
"""The bytes before a frame: the length of its JSON and that of its raw bytes, each in four."""

MAX_HEADER_BYTES = 4096
"""The most bytes of a reply's JSON."""

MAX_CPU_SECONDS = 2.0
"""CPU seconds of one job. The largest images take half of it."""

MAX_WALL_SECONDS = 30.0
"""Seconds after which a job's child ends even if it only waits."""

MEMORY_BYTES = 448 << 20
"""The most bytes of the address space of a job's child, including about 170 MB of libraries."""

OPEN_FILES = 32

READ_BYTES = 1 << 20

FORBIDDEN = frozenset(
    "open import os.exec os.fork os.forkpty os.posix_spawn os.system subprocess.Popen socket.__new__ "
    "socket.getaddrinfo ctypes.dlopen".split()
)
"""Python's audit events that a job's child refuses. Decoding never needs them."""


class Job(Struct, frozen=True):
    """A file to decode, which follows in base64 or raw."""

    is_image: bool
    declared: str
    """The media type that the caller says; empty if it says none."""
    is_base64: bool
    most_pixels: int = 0
    """A larger image is made smaller."""
    rate: int = 0
    """The samples for each second of a recording."""

    @property
    def max_result(self) -> int:
        """The most bytes of the result."""
        return self.most_pixels * PIXEL_BYTES if self.is_image else MAX_SECONDS * self.rate * SAMPLE_BYTES


class Reply(Struct, frozen=True):
    """The result of a job. The pixels or samples follow."""

    width: int = 0
    height: int = 0
    refusal: Refusal | None = None


def main() -> None:
    """Serves jobs until standard input ends."""
    from antiphon.media import images, sound  # noqa: F401 - the children may not import them

    for kind, limit in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
    ):
        resource.setrlimit(kind, (limit, limit))
    jobs, replies = sys.stdin.buffer, sys.stdout.buffer
    replies.write(build_frame(Reply()))
    replies.flush()
    while len(lengths := jobs.read(LENGTHS_BYTES)) == LENGTHS_BYTES:
        header = jobs.read(int.from_bytes(lengths[:4], "big"))
        data = jobs.read(int.from_bytes(lengths[4:], "big"))
        replies.write(run_in_child(msgspec.json.decode(header, type=Job), data))
        replies.flush()


def build_frame(header: Job | Reply, data: bytes = b"") -> bytes:
    """Returns a frame."""
    return build_frame_start(header, len(data)) + data


def build_frame_start(header: Job | Reply, size: int) -> bytes:
    """Returns what comes before the raw bytes of a frame, of which there are `size`."""
    text = msgspec.json.encode(header)
    return len(text).to_bytes(4, "big") + size.to_bytes(4, "big") + text


def run_in_child(job: Job, data: bytes) -> bytes:
    """Has a child decode the file. Returns the frame of the reply."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            decode_alone(job, data, writing)
        finally:
            os._exit(1)  # it has replied, or the file is damaged
    os.close(writing)
    frame, most = bytearray(), LENGTHS_BYTES + MAX_HEADER_BYTES + job.max_result
    while len(frame) <= most and (part := os.read(reading, READ_BYTES)):
        frame += part
    os.close(reading)
    if len(frame) > most:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM):
        return build_frame(Reply(refusal=Refusal(Reason.TIME)))
    sizes = int.from_bytes(frame[:4], "big"), int.from_bytes(frame[4:8], "big")
    if len(frame) < LENGTHS_BYTES or len(frame) != LENGTHS_BYTES + sum(sizes):
        return build_frame(Reply(refusal=Refusal(Reason.DAMAGED)))
    return bytes(frame)


def decode_alone(job: Job, data: bytes, writing: int) -> None:
    """Decodes the file in this child, and writes the reply. Raises anything for a damaged file."""
    from antiphon.media.images import decode_image
    from antiphon.media.sound import decode_sound

    for shared in (0, 1):  # with them, a child that a file has taken over could answer for the next caller
        os.close(shared)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, MAX_WALL_SECONDS)
    sys.addaudithook(_refuse_event)
    try:
        content = base64.b64decode(data, validate=True) if job.is_base64 else data
        if job.is_image:
            width, height, result = decode_image(content, job.declared, job.most_pixels)
            reply = Reply(width, height)
        else:
            reply, result = Reply(), decode_sound(content, job.declared, job.rate)
    except FileRefused as refused:
        reply, result = Reply(refusal=refused.refusal), b""
    except MemoryError:
        reply, result = Reply(refusal=Refusal(Reason.MEMORY)), b""
    unsent = memoryview(build_frame(reply, result))
    while unsent:
        unsent = unsent[os.write(writing, unsent) :]


def _refuse_event(event: str, _: object) -> None:
    """Refuses files, connections and processes. An audit hook stays until the process ends."""
    if event in FORBIDDEN:
        raise PermissionError(f"a decoder may not do {event}")


if __name__ == "__main__":
    main()
