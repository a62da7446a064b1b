"""Sends the error of one sequence from the sampler inside vLLM to the engine host. vLLM itself cannot pass
such an error: an exception in its sampler would end all sequences.

The sampler sends the error as one datagram before it returns from its step, so the error arrives before the
step's token. The socket is in a directory that only this user can enter.
"""

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from antiphon.domain.values import asdict
from antiphon.errors import AntiphonError, ErrorReport

MAX_REPORT_BYTES = 65536
"""The most bytes of one report. A message repeats at most some hundred characters of a request."""


class FailureSender:
    """The sampler's end of the socket."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def send(self, sequence: str, error: AntiphonError) -> None:
        """Sends the error that ends a sequence. Does nothing if the host is gone."""
        report = {"sequence": sequence, "error": asdict(ErrorReport.from_error(error))}
        with suppress(OSError):
            self._socket.sendto(json.dumps(report).encode()[:MAX_REPORT_BYTES], self._path)


class FailureReceiver:
    """The engine host's end of the socket. Its methods never wait for a report."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "failures.sock")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.setblocking(False)
        self._errors: dict[str, AntiphonError] = {}

    def take(self, sequence: str) -> AntiphonError | None:
        """Returns the error of a sequence if one has arrived, and forgets it."""
        for name, error in self._receive():
            self._errors[name] = error
        return self._errors.pop(sequence, None)

    def _receive(self) -> Iterator[tuple[str, AntiphonError]]:
        """Yields the reports that have arrived."""
        while True:
            try:
                report = json.loads(self._socket.recv(MAX_REPORT_BYTES))
            except OSError:
                return
            yield report["sequence"], ErrorReport(**report["error"]).to_exception()

    def close(self) -> None:
        self._socket.close()
