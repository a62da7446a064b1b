"""The checking process: compiles callers' constraints one after another and computes masks, under hard
limits.

The checker starts it as `python -m antiphon.constraints.checking_process SECONDS MEMORY`. The two exchange
frames of JSON on standard input and output. The first frame is the vocabulary. Each later frame is a
constraint, which the process answers with its grammar or its refusal. A grammar that takes more than SECONDS
of CPU or MEMORY bytes ends this process; the checker treats that as a refusal.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from random import Random
from typing import BinaryIO

from msgspec import convert, to_builtins

from antiphon.constraints.grammar_builder import build_grammar, find_format, list_parts
from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.matching import CompilerVocabulary, Matcher, TokenTable, require_compiles
from antiphon.domain.request import Constraint
from antiphon.errors import AntiphonError, EngineError, ErrorReport, InvalidValue, UnsupportedParameter

HEADER = 4
"""The bytes of the length before each frame."""

MASK_COUNT = 24
"""The number of masks that are computed for each grammar: the first mask, and the masks along a text that the
grammar allows."""

MAX_PROBES = 32
"""The number of random ids that are tried. If the mask allows none of them, the next allowed id is taken."""

START_CPU = 30
"""Seconds of CPU for starting and reading the vocabulary."""


def check_constraint(constraint: Constraint, vocabulary: CompilerVocabulary) -> Grammar:
    """Returns the grammar of a constraint. Raises an AntiphonError if the grammar does not compile or gives
    no masks."""
    grammar, inner = build_grammar(constraint), list_parts(constraint)
    _require_distinct_calls(constraint, vocabulary)
    try:
        require_compiles(grammar, vocabulary, constraint.field)
    except InvalidValue:
        for field, each in inner:  # the faulty part is reported under its own name
            require_compiles(each, vocabulary, field)
        raise
    for field, each in (*inner, (constraint.field, grammar)):
        try:
            _try_masks(Matcher(each, vocabulary), vocabulary)
        except EngineError as error:
            raise InvalidValue(f"{field} is too complex: {error.message}", param=field) from None
    return grammar


def _require_distinct_calls(constraint: Constraint, vocabulary: CompilerVocabulary) -> None:
    """Raises UnsupportedParameter if a text of a format could be confused with calls."""
    if (format_ := find_format(constraint)) is None:
        return
    form, grammar, heads = format_
    require_compiles(grammar, vocabulary, form.field)
    matcher = Matcher(grammar, vocabulary)
    for head in heads:
        try:
            matcher.copy().consume(vocabulary.spell(head))
        except EngineError:
            continue
        raise UnsupportedParameter(
            f"{form.field} is not supported together with tools that may be called: its text may begin like "
            "a call of this model, so the two cannot be told apart; leave one of them out, or send "
            'tool_choice "none"',
            param=form.field,
        )


def _try_masks(matcher: Matcher, vocabulary: CompilerVocabulary) -> None:
    """Computes masks along one random text. Raises EngineError if a mask fails or allows nothing."""
    chosen = Random(0)  # noqa: S311 - the same text for the same grammar
    ends = frozenset(vocabulary.tokens.ends)
    for _ in range(MASK_COUNT):
        forced = matcher.find_forced()
        if ends & set(forced):
            return
        matcher.consume(forced)
        token = pick_allowed(matcher.compute_mask(), chosen, vocabulary.size, ends)
        if token is None:
            if matcher.is_complete:
                return
            raise EngineError("no text of this model's tokens can satisfy it")
        matcher.consume([token])


def pick_allowed(mask: bytes, chosen: Random, size: int, but: frozenset[int] = frozenset()) -> int | None:
    """Picks one of the ids that a mask allows, except those in `but`. None if there is no such id."""
    bits = int.from_bytes(mask, "little") & ((1 << size) - 1)
    for each in but:
        bits &= ~(1 << each)
    if not bits:
        return None
    for _ in range(MAX_PROBES):
        if bits >> (start := chosen.randrange(size)) & 1:
            return start
    above = bits >> start
    above, base = (above, start) if above else (bits, 0)
    return base + (above & -above).bit_length() - 1


def main() -> None:
    """Answers constraints until standard input ends."""
    seconds, memory = float(sys.argv[1]), int(sys.argv[2])
    source, target = sys.stdin.buffer, sys.stdout.buffer
    _confine(memory)
    _set_alarm(START_CPU)
    first = read_frame(source)
    if first is None:
        return
    vocabulary = CompilerVocabulary(_read_tokens(first))
    _close_stderr()
    write_frame(target, {"ready": True})
    while (job := read_frame(source)) is not None:
        _set_alarm(seconds)
        answer = _answer(job, vocabulary)
        _set_alarm(0)
        write_frame(target, answer)


def _read_tokens(first: Mapping[str, object]) -> TokenTable:
    """Reads the vocabulary from the first frame. Each character of a piece in the frame represents one
    byte."""
    pieces, ends = first["pieces"], first["ends"]
    if not isinstance(pieces, list) or not isinstance(ends, list):
        raise TypeError("the first frame is no vocabulary")
    return TokenTable(tuple(piece.encode("latin-1") for piece in pieces), tuple(ends))


def _answer(job: Mapping[str, object], vocabulary: CompilerVocabulary) -> dict[str, object]:
    """Checks one constraint. Returns a frame with its grammar or with its error."""
    try:
        return {"grammar": to_builtins(check_constraint(convert(job, Constraint), vocabulary))}
    except AntiphonError as error:
        return {"error": asdict(ErrorReport.from_error(error))}


def _close_stderr() -> None:
    """Closes standard error, because later output could contain callers' text, and no process reads it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stderr.fileno())
    os.close(nowhere)


def _confine(memory: int) -> None:
    """Limits the memory and the open files of this process, and forbids writing files and core dumps."""
    import resource

    for kind, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        resource.setrlimit(kind, (most, most))


def _set_alarm(seconds: float) -> None:
    """Ends this process after `seconds` of CPU; 0 removes the limit."""
    import signal

    signal.setitimer(signal.ITIMER_PROF, seconds)


def read_frame(source: BinaryIO) -> dict[str, object] | None:
    """The next frame; None at the end."""
    header = source.read(HEADER)
    if len(header) < HEADER:
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
    return len(body).to_bytes(HEADER, "big") + body


if __name__ == "__main__":
    main()
