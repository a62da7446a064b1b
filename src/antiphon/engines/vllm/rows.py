"""The rows of vLLM's batch whose tokens Antiphon's sampler draws, and their errors. It does not import vLLM.

vLLM has a token drawn for a row even while the row's prompt is incomplete, and discards that token. So a
row's state takes a token only when the token is in vLLM's list of the row's output.

The sampler sends the error of one sequence to the engine host. vLLM itself cannot pass such an error: an
exception in its sampler would end all sequences. The sampler sends the error as one datagram before it
returns from its step, so the error arrives before the step's token. The socket is in a directory that only
this user can enter.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.guide import Guide
from antiphon.domain.request import Sampling
from antiphon.domain.values import asdict
from antiphon.engines.defects import guard
from antiphon.engines.sampling import DrawnToken, Sampler, SamplingState
from antiphon.errors import AntiphonError, ErrorReport

MAX_MASK_CPU_SECONDS = 0.5
"""The most CPU seconds that a constraint may take for the mask of one token. All rows of the batch wait for
it."""

RECHECK_SECONDS = 0.02
"""Seconds between two checks of the CPU time that a mask has taken."""

FILLER_TOKEN = 0
"""The token of a row that has failed. The engine host drops it."""

ARGUMENT = "antiphon"
"""The name under which vLLM carries a `RowRequest` in `extra_args`."""


class RowRequest(Struct, frozen=True):
    """The facts that the sampler inside vLLM needs about one sequence."""

    sequence: str
    """The sequence's name, under which its failure is reported."""
    sampling: Sampling
    choice: int
    end_ids: tuple[int, ...]
    """The model's end-of-generation tokens."""
    stop_ids: tuple[int, ...]
    max_tokens: int
    grammar: Grammar | None = None
    """The checked grammar of the sequence's constraint; None without a constraint."""
    field: str | None = None
    """The caller's name for the constraint."""

    def ends_with(self, token: int) -> bool:
        """Whether the token ends the sequence."""
        return token in self.stop_ids or (token in self.end_ids and not self.sampling.ignore_eos)


def encode_row(row: RowRequest) -> bytes:
    return msgspec.msgpack.encode(row)


def decode_row(encoded: bytes) -> RowRequest:
    return msgspec.msgpack.decode(encoded, type=RowRequest)


class GuideFactory(Protocol):
    """Makes guides. `constraints.guide.MaskWorkers` implements it."""

    result_ready: threading.Event
    """Set whenever a guide has computed forced tokens or a mask."""

    def create_guide(self, grammar: Grammar) -> Guide: ...


class Row(Struct, eq=False):
    """One row of the batch: a sequence whose tokens Antiphon's sampler draws."""

    request: RowRequest
    state: SamplingState
    output: Sequence[int]
    """The sequence's tokens so far: vLLM's own list, to which vLLM appends."""
    guide: Guide | None = None
    chosen: tuple[int, float | None] | None = None
    """The last chosen token, which vLLM may discard, and its surprise in bits if Mirostat is on."""
    has_failed: bool = False
    """Whether the row's failure was reported, so that it gets only FILLER_TOKEN."""

    @property
    def is_over(self) -> bool:
        """Whether the sequence is complete."""
        output = self.output
        return len(output) >= self.request.max_tokens or bool(output and self.request.ends_with(output[-1]))


class RowTable(Struct):
    """All rows of the batch."""

    vocabulary: int
    max_rows: int
    """The most sequences that vLLM has at once."""
    report: Callable[[str, AntiphonError], None]
    """Reports the name of a sequence and the error that ends it."""
    get_guides: Callable[[], GuideFactory]
    """Returns the factory of guides. The first call creates it."""
    rows: dict[int, Row] = field(default_factory=dict)
    """Maps the index in the batch to the row."""
    _preempted: dict[str, Row] = field(default_factory=dict)
    """Maps the names of sequences to rows that left the batch and may come back, oldest first."""
    _sampler: Sampler | None = None

    # --- changes of the batch

    def add(self, index: int, request: RowRequest, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Adds a row; a row at this index is replaced. A sequence that was preempted gets its former row and
        state again."""
        self.rows.pop(index, None)
        row = self._preempted.pop(request.sequence, None)
        if row is None:
            built_row = guard(self._build_row, request, prompt, output)
            if isinstance(built_row, AntiphonError):
                self.report(request.sequence, built_row)
                state = SamplingState(Sampling(), 0, None, (), (), (), self.vocabulary)
                built_row = Row(request, state, output, has_failed=True)
            row = built_row
        row.output = output
        self.rows[index] = row

    def _build_row(self, request: RowRequest, prompt: Sequence[int], output: Sequence[int]) -> Row:
        state = SamplingState(
            request.sampling,
            request.choice,
            None,
            prompt=prompt,
            end_tokens=request.end_ids,
            stop_tokens=request.stop_ids,
            vocabulary_size=self.vocabulary,
        )
        guide = None if request.grammar is None else self.get_guides().create_guide(request.grammar)
        return Row(request, state, output, guide)

    def remove(self, index: int) -> None:
        """Removes a row. If its sequence is not complete, keeps the row, because vLLM may have preempted the
        sequence."""
        row = self.rows.pop(index, None)
        if row is None:
            return
        row.state.mask = None
        if row.is_over:
            self._abandon_guide(row)
            return
        self._preempted[row.request.sequence] = row
        while len(self._preempted) > self.max_rows:
            self._abandon_guide(self._preempted.pop(next(iter(self._preempted))))

    def move(self, index: int, target: int, is_swap: bool) -> None:
        """Moves a row from `index` to `target`. With `is_swap`, moves the row at `target` to `index`."""
        row, target_row = self.rows.pop(index, None), self.rows.pop(target, None)
        if row is not None:
            self.rows[target] = row
        if is_swap and target_row is not None:
            self.rows[index] = target_row

    def _abandon_guide(self, row: Row) -> None:
        if row.guide is not None:
            row.guide.abandon()

    # --- the parts of a step

    def accept_committed(self) -> None:
        """Adds the tokens that vLLM has appended to outputs since the last step to the states of their rows.
        Guides then compute the next masks while the model computes."""
        for row in self.rows.values():
            if not row.has_failed:
                error = guard(self._accept_row, row)
                if error is not None:
                    self._fail(row, error)

    def _accept_row(self, row: Row) -> None:
        while (position := row.state.position) < len(row.output):
            token = row.output[position]
            surprise = row.chosen[1] if row.chosen is not None and row.chosen[0] == token else None
            row.chosen = None
            row.state.accept(token, surprise)
            if row.guide is not None and not row.request.ends_with(token):
                self._wait_for_mask(row.guide, row)
                row.guide.advance(token)

    def choose(self, logits: NDArray[np.float32], rows: Sequence[Row]) -> list[int]:
        """Chooses the token of each row. `logits`: the model's own logits of these rows, only read."""
        for row in rows:
            if row.guide is not None and not row.has_failed:
                error = guard(self._set_mask, row)
                if error is not None:
                    self._fail(row, error)
        if self._sampler is None:
            self._sampler = Sampler(self.vocabulary)
        results = self._sampler.draw_without_accepting(
            logits, [None if row.has_failed else row.state for row in rows]
        )
        tokens: list[int] = []
        for row, result in zip(rows, results, strict=True):
            if isinstance(result, AntiphonError):
                self._fail(row, result)
            if isinstance(result, DrawnToken):
                row.chosen = (result.sampled.token, result.surprise)
                tokens.append(result.sampled.token)
            else:
                tokens.append(FILLER_TOKEN)
        return tokens

    def _set_mask(self, row: Row) -> None:
        """Waits for the mask of a row, and sets it. Raises the error of the constraint."""
        if row.guide is not None:
            self._wait_for_mask(row.guide, row)
            row.state.mask, row.state.is_forced = row.guide.get_mask()

    def _wait_for_mask(self, guide: Guide, row: Row) -> None:
        """Waits until a guide has computed the next mask. Raises the error of the constraint."""
        ready = self.get_guides().result_ready
        while True:
            ready.clear()
            if (error := guide.find_failure(row.request.field, MAX_MASK_CPU_SECONDS)) is not None:
                guide.abandon()
                raise error
            if guide.is_ready:
                return
            ready.wait(RECHECK_SECONDS)

    def _fail(self, row: Row, error: AntiphonError) -> None:
        """Reports the error of a row, once. After that, the row gets FILLER_TOKEN until the host ends the
        sequence."""
        if not row.has_failed:
            row.has_failed = True
            self.report(row.request.sequence, error)


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
