"""The checking process: compiles callers' constraints and computes masks, with hard limits.

The checker starts it as `python -m antiphon.constraints.checking_process SECONDS MEMORY`. The checker and
this process send each other frames of JSON on standard input and output. The first frame is the vocabulary.
Each later frame is a constraint. The reply is its grammar or its refusal. A constraint that needs more than
SECONDS of CPU or MEMORY bytes ends this process. The checker treats this as a refusal.
"""

import json
import os
import sys
from collections.abc import Mapping
from random import Random
from typing import BinaryIO

from msgspec import convert, to_builtins

from antiphon.constraints.grammar_builder import build_grammar, find_answer_format, list_parts, list_trials
from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.matching import CompilerVocabulary, Matcher, TokenTable, require_compiles
from antiphon.domain.request import Constraint
from antiphon.domain.values import asdict
from antiphon.errors import AntiphonError, EngineError, ErrorReport, InvalidValue, UnsupportedParameter

HEADER_BYTES = 4
"""The size in bytes of the length that precedes each frame's body."""

MASK_COUNT = 24
"""How many masks are computed for each grammar, along one text that the grammar allows."""

MAX_PROBES = 32
"""How many random ids are tried. If the mask allows none of them, the next allowed id is taken."""

MAX_TRIAL_MASKS = 8_000
"""The most masks of a trial: one for each character that a text can count (`schemas.MAX_COUNTED_LENGTH`)."""

TRIAL_CHARACTERS = b"abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789 .-_"
"""The characters of a trial's text. No text ends with them, and no token has less than one."""

START_CPU = 30
"""Seconds of CPU for starting and reading the vocabulary."""


def check_constraint(constraint: Constraint, vocabulary: CompilerVocabulary) -> Grammar:
    """Returns the grammar of a constraint. Raises an AntiphonError if the grammar does not compile or gives
    no masks."""
    grammar, parts = build_grammar(constraint), list_parts(constraint)
    _require_format_unlike_calls(constraint, vocabulary)
    try:
        require_compiles(grammar, vocabulary, constraint.field)
    except InvalidValue:
        for field, part in parts:  # if a part is faulty, the error names this part
            require_compiles(part, vocabulary, field)
        raise
    for field, tested_grammar in (*parts, (constraint.field, grammar)):
        try:
            _try_masks(Matcher(tested_grammar, vocabulary), vocabulary)
        except EngineError as error:
            raise InvalidValue(f"{field} is too complex: {error.message}", param=field) from None
    for field, trial in list_trials(constraint):
        try:
            _follow_to_end(Matcher(trial, vocabulary), vocabulary)
        except EngineError as error:
            raise InvalidValue(
                f"{field} has a pattern with too many repetitions to follow: {error.message}", param=field
            ) from None
    return grammar


def _require_format_unlike_calls(constraint: Constraint, vocabulary: CompilerVocabulary) -> None:
    """Raises UnsupportedParameter if the format of an answer without calls allows a text that begins like a
    call."""
    if (answer_format := find_answer_format(constraint)) is None:
        return
    field = answer_format.constraint.field
    require_compiles(answer_format.grammar, vocabulary, field)
    matcher = Matcher(answer_format.grammar, vocabulary)
    for beginning in answer_format.call_beginnings:
        try:
            matcher.copy().consume(vocabulary.spell(beginning))
        except EngineError:
            continue
        raise UnsupportedParameter(
            f"{field} is not supported together with tools that may be called: its text may begin like "
            "a call of this model, so a call cannot be recognised; leave out this field or the tools, or "
            'send tool_choice "none"',
            param=field,
        )


def _try_masks(matcher: Matcher, vocabulary: CompilerVocabulary) -> None:
    """Computes masks along one random text. Raises EngineError if a mask fails or allows nothing."""
    random = Random(0)  # noqa: S311 - the same text for the same grammar
    ends = frozenset(vocabulary.tokens.ends)
    for _ in range(MASK_COUNT):
        forced = matcher.find_forced()
        if ends & set(forced):
            return
        matcher.consume(forced)
        token = pick_allowed(matcher.compute_mask(), random, vocabulary.size, ends)
        if token is None:
            if matcher.is_complete:
                return
            raise EngineError("no text of this model's tokens can satisfy it")
        matcher.consume([token])


def _follow_to_end(matcher: Matcher, vocabulary: CompilerVocabulary) -> None:
    """Computes masks along a text that goes on as long as it can, in short steps, because these need the most
    states. Raises EngineError if a mask fails."""
    random = Random(0)  # noqa: S311 - the same text for the same grammar
    ends = frozenset(vocabulary.tokens.ends)
    candidates = [token for char in TRIAL_CHARACTERS for token in vocabulary.spell(chr(char))]
    for _ in range(MAX_TRIAL_MASKS):
        mask = matcher.compute_mask()
        random.shuffle(candidates)
        allowed = (token for token in candidates if mask[token // 8] >> token % 8 & 1)
        token = next(allowed, None)
        if token is None:
            token = pick_allowed(mask, random, vocabulary.size, ends)
        if token is None:
            return
        matcher.consume([token])


def pick_allowed(
    mask: bytes, random: Random, size: int, excluded: frozenset[int] = frozenset()
) -> int | None:
    """Returns a random id that a mask allows and `excluded` does not contain. Returns None if there is no
    such id."""
    bits = int.from_bytes(mask, "little") & ((1 << size) - 1)
    for token in excluded:
        bits &= ~(1 << token)
    if not bits:
        return None
    for _ in range(MAX_PROBES):
        if bits >> (start := random.randrange(size)) & 1:
            return start
    if bits >> start:
        bits = bits >> start << start  # the ids from `start` on
    lowest_bit = bits & -bits
    return lowest_bit.bit_length() - 1


def main() -> None:
    """Checks constraints until standard input ends."""
    seconds, memory = float(sys.argv[1]), int(sys.argv[2])
    source, target = sys.stdin.buffer, sys.stdout.buffer
    _confine(memory)
    _set_alarm(START_CPU)
    first_frame = read_frame(source)
    if first_frame is None:
        return
    vocabulary = CompilerVocabulary(_read_tokens(first_frame))
    _close_stderr()
    write_frame(target, {"ready": True})
    while (job := read_frame(source)) is not None:
        _set_alarm(seconds)
        reply = _check_job(job, vocabulary)
        _set_alarm(0)
        write_frame(target, reply)


def _read_tokens(first_frame: Mapping[str, object]) -> TokenTable:
    """Reads the vocabulary from the first frame. Each character of a piece in the frame represents one
    byte."""
    pieces, ends = first_frame["pieces"], first_frame["ends"]
    if not isinstance(pieces, list) or not isinstance(ends, list):
        raise TypeError("the first frame is no vocabulary")
    return TokenTable(tuple(piece.encode("latin-1") for piece in pieces), tuple(ends))


def _check_job(job: Mapping[str, object], vocabulary: CompilerVocabulary) -> dict[str, object]:
    """Checks one constraint. Returns a frame with its grammar or with its error."""
    try:
        return {"grammar": to_builtins(check_constraint(convert(job, Constraint), vocabulary))}
    except AntiphonError as error:
        return {"error": asdict(ErrorReport.from_error(error))}


def _close_stderr() -> None:
    """Redirects standard error to the null device. Later output could contain text of callers, and nobody
    reads it."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stderr.fileno())
    os.close(null_device)


def _confine(memory: int) -> None:
    """Limits the memory and the open files of this process, and forbids writing files and core dumps."""
    import resource

    for resource_id, limit in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        resource.setrlimit(resource_id, (limit, limit))


def _set_alarm(seconds: float) -> None:
    """Ends this process after `seconds` of CPU; 0 removes the limit."""
    import signal

    signal.setitimer(signal.ITIMER_PROF, seconds)


def read_frame(source: BinaryIO) -> dict[str, object] | None:
    """Reads the next frame. Returns None at the end of the input."""
    header = source.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    message: dict[str, object] = json.loads(source.read(int.from_bytes(header, "big")))
    return message


def write_frame(target: BinaryIO, value: object) -> None:
    """Writes one frame."""
    target.write(encode_frame(value))
    target.flush()


def encode_frame(value: object) -> bytes:
    """Encodes a value as a frame."""
    body = json.dumps(value).encode()
    return len(body).to_bytes(HEADER_BYTES, "big") + body


if __name__ == "__main__":
    main()
