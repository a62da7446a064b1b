"""The decoding process: decodes callers' images and recordings, each in a child of its own with hard limits.

The decoder starts it as `python -m antiphon.media.decoding_process`. It imports the libraries once, and forks
the child of the next job before the job comes. That child reads the file from standard input, decodes it and
ends. So a picture costs milliseconds, what one file breaks is gone with its child, and no file meets what
another one left behind.

Both sides send frames: the lengths of two parts, JSON, and raw bytes. The JSON of a job is a `Job`, and that
of its reply a `Reply`.
"""

import base64
import fcntl
import gc
import os
import resource
import signal
import sys
from contextlib import suppress

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

PIPE_BYTES = 1 << 20
"""The size of the pipes, if the system allows it. Each time a pipe is full, its two processes wait for each
other."""

STDIN, STDOUT = 0, 1

FILE_READ = b"\0"
"""What a child reports when it has read its file."""

WARM_PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DAAAAEAQEARwbK3gAAAABJRU5ErkJggg=="
)
"""A PNG of one pixel, which a child decodes before its job. So its pages of memory are its own by then, and
the job does not wait for that."""

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
    for pipe in (STDIN, STDOUT):
        enlarge_pipe(pipe)
    gc.freeze()  # children would copy the pages of what it looks at
    write_all(STDOUT, build_frame(Reply()))
    while True:
        child, orders, results = start_child()
        if len(lengths := read_exactly(STDIN, LENGTHS_BYTES)) < LENGTHS_BYTES:
            return  # the child's pipe ends with this process, and the child with it
        header = read_exactly(STDIN, int.from_bytes(lengths[:4], "big"))
        with suppress(BrokenPipeError):  # it was killed, and has read no file
            write_all(orders, lengths + header)
        os.close(orders)
        if os.read(results, 1) != FILE_READ:
            sys.exit(
                "a child ended before it had read its file, whose rest nobody can tell from the next job"
            )
        write_all(STDOUT, collect_reply(child, results, msgspec.json.decode(header, type=Job)))


def start_child() -> tuple[int, int, int]:
    """Forks a child that waits for a job. Returns its id, the pipe for the start of its job, and the pipe of
    its reply."""
    orders, give_orders = os.pipe()
    results, give_results = os.pipe()
    enlarge_pipe(results)
    child = os.fork()
    if not child:
        os.close(give_orders)
        os.close(results)
        try:
            serve_job(orders, give_results)
        finally:
            os._exit(1)  # it has replied, or the file is damaged
    os.close(orders)
    os.close(give_results)
    return child, give_orders, results


def serve_job(orders: int, results: int) -> None:
    """Waits for a job in this child, and decodes its file. Raises anything for a damaged file."""
    from antiphon.media.images import decode_image

    os.close(STDOUT)  # so that the server notices the end of this process's parent
    decode_image(WARM_PICTURE, "image/png", 1)
    if len(lengths := read_exactly(orders, LENGTHS_BYTES)) < LENGTHS_BYTES:
        return
    header = read_exactly(orders, int.from_bytes(lengths[:4], "big"))
    data = read_exactly(STDIN, int.from_bytes(lengths[4:], "big"))
    os.write(results, FILE_READ)
    os.close(orders)
    decode_alone(msgspec.json.decode(header, type=Job), data, results)


def collect_reply(child: int, results: int, job: Job) -> bytes:
    """Reads the reply of a child, and ends the child. Returns the frame of the reply."""
    frame, size, most = bytearray(), LENGTHS_BYTES, LENGTHS_BYTES + MAX_HEADER_BYTES + job.max_result
    while len(frame) < size <= most and (part := os.read(results, READ_BYTES)):
        frame += part
        if len(frame) >= LENGTHS_BYTES:
            size = LENGTHS_BYTES + int.from_bytes(frame[:4], "big") + int.from_bytes(frame[4:8], "big")
    os.close(results)
    if len(frame) >= size or size > most:
        os.kill(child, signal.SIGKILL)  # its end takes longer than its reply
    _, status = os.waitpid(child, 0)
    if len(frame) == size <= most:
        return bytes(frame)
    is_late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM)
    return build_frame(Reply(refusal=Refusal(Reason.TIME if is_late else Reason.DAMAGED)))


def enlarge_pipe(pipe: int) -> None:
    """Gives a pipe PIPE_BYTES, on Linux and within the user's limits."""
    with suppress(AttributeError, OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def read_exactly(pipe: int, size: int) -> bytearray:
    """Reads so many bytes, or fewer if the pipe ends. Reads none beyond them, because another process reads
    those."""
    data = bytearray(size)
    view, count = memoryview(data), 0
    while count < size and (part := os.readv(pipe, [view[count:]])):
        count += part
    view.release()
    del data[count:]
    return data


def write_all(pipe: int, data: bytes | bytearray) -> None:
    """Writes all bytes."""
    unsent = memoryview(data)
    while unsent:
        unsent = unsent[os.write(pipe, unsent) :]


def build_frame(header: Job | Reply, data: bytes = b"") -> bytes:
    """Returns a frame."""
    return build_frame_start(header, len(data)) + data


def build_frame_start(header: Job | Reply, size: int) -> bytes:
    """Returns what comes before the raw bytes of a frame, of which there are `size`."""
    text = msgspec.json.encode(header)
    return len(text).to_bytes(4, "big") + size.to_bytes(4, "big") + text


def decode_alone(job: Job, data: bytes | bytearray, results: int) -> None:
    """Decodes the file in this child, and writes the reply. Raises anything for a damaged file."""
    from antiphon.media.images import decode_image
    from antiphon.media.sound import decode_sound

    # With these, a child that a file has taken over could answer for the next caller.
    for shared in (STDIN, STDOUT):
        with suppress(OSError):  # it is closed already
            os.close(shared)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, MAX_WALL_SECONDS)
    sys.addaudithook(_refuse_event)
    try:
        content = base64.b64decode(data, validate=True) if job.is_base64 else bytes(data)
        if job.is_image:
            width, height, result = decode_image(content, job.declared, job.most_pixels)
            reply = Reply(width, height)
        else:
            reply, result = Reply(), decode_sound(content, job.declared, job.rate)
    except FileRefused as refused:
        reply, result = Reply(refusal=refused.refusal), b""
    except MemoryError:
        reply, result = Reply(refusal=Refusal(Reason.MEMORY)), b""
    write_all(results, build_frame(reply, result))


def _refuse_event(event: str, _: object) -> None:
    """Refuses files, connections and processes. An audit hook stays until the process ends."""
    if event in FORBIDDEN:
        raise PermissionError(f"a decoder may not do {event}")


if __name__ == "__main__":
    main()
