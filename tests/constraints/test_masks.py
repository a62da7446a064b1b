"""Guides: forced tokens and masks come from beside the decode thread, and every failure is an error."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pytest
from llguidance import LLParserLimits

from antiphon.constraints.checking_process import check_constraint
from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.guide import MAX_CPU_SECONDS, PATIENCE, Guide
from antiphon.constraints.mask_workers import (
    WORKERS,
    MaskWorkers,
    RevocableTokenizer,
    build_token_table,
    create_cpu_clock,
)
from antiphon.constraints.matching import (
    DEAD_END,
    LIMIT_CAUSE,
    STOP_CAUSE,
    CompilerVocabulary,
    Matcher,
    is_caused_by_constraint,
)
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.engines.base import PromptTokens, TokenKind, TokenRequest
from antiphon.engines.base import Vocabulary as Table
from antiphon.engines.llama.guided_decoding import GuidedSequences
from antiphon.engines.llama.sequence import TokenSequence
from antiphon.errors import AntiphonError, EngineBusy, EngineError, InvalidValue, UnsupportedParameter
from tests.support.constraint_texts import END, TOKENS
from tests.support.waiting import wait_until

KIND = ConstraintKind
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def masks() -> Iterator[MaskWorkers]:
    made = MaskWorkers(TOKENS)
    yield made
    made.close()


def grammar(kind: ConstraintKind, source: str) -> Grammar:
    return check_constraint(Constraint(kind, source), CompilerVocabulary(TOKENS))


def lark(source: str) -> Grammar:
    return Grammar(json.dumps({"grammars": [{"lark_grammar": source}]}))


def answered(guide: Guide, seconds: float = 30.0) -> Guide:
    until = time.monotonic() + seconds
    while not guide.is_ready and time.monotonic() < until:
        time.sleep(0.0005)
    assert guide.is_ready
    return guide


def text_of(masks: MaskWorkers, source: Grammar, seed: int) -> bytes:
    """A text as the decode thread makes one, with a model that knows nothing."""
    chosen, made = Random(seed), list[int]()
    guide = masks.create_guide(source)
    while len(made) < 500:
        forced = answered(guide).take_forced()
        made += forced
        if forced and forced[-1] == END:
            break
        token = chosen.choice(np.flatnonzero(guide.get_allowed()).tolist())
        made.append(token)
        if token == END:
            break
        guide.advance(token)
    assert made.pop() == END
    return b"".join(TOKENS.pieces[token] for token in made)


def test_a_text_follows_its_schema_and_ends_where_it_is_complete(masks: MaskWorkers):
    source = grammar(KIND.JSON_SCHEMA, json.dumps(SCHEMA))
    for seed in range(10):
        found = json.loads(text_of(masks, source, seed))
        assert len(found["name"]) <= 6 and found["age"] <= 120


def test_forced_tokens_come_first_and_the_mask_is_for_the_next(masks: MaskWorkers):
    guide = answered(masks.create_guide(grammar(KIND.REGEX, "abc[xy]z")))
    assert guide.get_forced() == (ord("a"), ord("b"), ord("c"))
    assert np.flatnonzero(guide.get_allowed()).tolist() == [ord("a")]
    guide.advance(ord("a"))
    assert guide.take_forced() == (ord("b"), ord("c"))
    assert np.flatnonzero(guide.get_allowed()).tolist() == [ord("x"), ord("y")]
    guide.advance(ord("x"))
    assert answered(guide).take_forced() == (ord("z"),)
    assert np.flatnonzero(guide.get_allowed()).tolist() == [END]


def test_what_a_worker_finds_out_is_seen_between_steps_only(masks: MaskWorkers):
    guide = answered(masks.create_guide(grammar(KIND.REGEX, "ab[xy]")))
    assert guide.is_settled and not guide.was_settled
    guide.record_settled()
    assert guide.was_settled
    guide.take_forced()
    guide.advance(ord("x"))
    assert not answered(guide).was_settled


def test_a_token_that_is_not_allowed_is_an_error_for_ever(masks: MaskWorkers):
    guide = answered(masks.create_guide(grammar(KIND.REGEX, "[ab]{9}")))
    guide.advance(ord("c"))
    for _ in range(2):
        with pytest.raises(EngineError):
            answered(guide).get_forced()
        with pytest.raises(EngineError):
            guide.get_allowed()
        guide.advance(ord("a"))


def test_a_grammar_that_does_not_compile_allows_nothing(masks: MaskWorkers):
    with pytest.raises(EngineError):
        answered(masks.create_guide(lark("start: /(/"))).get_allowed()


class Nowhere:
    """A desk where nobody works."""

    def __init__(self) -> None:
        self.result_ready = threading.Event()
        self.size = len(TOKENS.pieces)

    def put(self, guide: Guide) -> None: ...
    def abandon(self, guide: Guide) -> None: ...


def test_a_guide_that_was_not_answered_yet_allows_nothing():
    waiting = Guide(lark(""), Nowhere())
    for ask in (waiting.get_forced, waiting.get_allowed):
        with pytest.raises(EngineError):
            ask()


class Failing:
    """A matcher that fails at its `at`-th call, as native code may: by something that is no error of ours."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.complete = False

    def _count(self) -> None:
        self.left -= 1
        if not self.left:
            raise RuntimeError("the native matcher is gone")

    def consume(self, tokens: list[int]) -> None:
        self._count()

    def forced(self) -> list[int]:
        self._count()
        return []

    def mask(self) -> bytes:
        self._count()
        return b"\xff" * 64


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_matcher_that_breaks_is_an_error_of_its_guide(at: int):
    """Also the fourth: a mask that would allow the end where the matcher says the text is not complete."""
    guide = Guide(lark(""), Nowhere())
    guide._matcher = Failing(at)  # type: ignore[assignment]
    words = CompilerVocabulary(TOKENS)
    with suppress(RuntimeError):
        guide.work(words)
    assert guide.is_ready
    with pytest.raises(EngineError):
        guide.get_allowed()


class Panic(BaseException):
    """As native code raises it: no Exception."""


class Panicking(Failing):
    def _count(self) -> None:
        raise Panic


def test_a_worker_outlives_what_native_code_does(masks: MaskWorkers, caplog: pytest.LogCaptureFixture):
    for _ in range(2 * WORKERS):
        guide = answered(masks.create_guide(grammar(KIND.REGEX, "a[bc]")))
        guide._matcher = Panicking(1)  # type: ignore[assignment]
        guide.take_forced()
        guide.advance(ord("b"))
        with pytest.raises(EngineError) as raised:
            answered(guide).get_allowed()
        assert "Panic at" in (raised.value.cause or "") and "Panic at" in caplog.text
    assert answered(masks.create_guide(grammar(KIND.REGEX, "ab"))).get_forced()


class Stuck(Guide):
    """Keeps a worker for as long as it is not let go, which has had so much CPU."""

    def __init__(
        self, masks: MaskWorkers, leave: threading.Event, cpu: float, is_first: bool = False
    ) -> None:
        self.entered, self.go, self.cpu, self.first = threading.Event(), leave, cpu, is_first
        super().__init__(lark(""), masks)
        self.begin()

    @property
    def is_first(self) -> bool:
        return self.first

    @is_first.setter
    def is_first(self, value: bool) -> None: ...

    def work(self, vocabulary: CompilerVocabulary, *_: Any, **__: Any) -> None:
        self._cpu_clock = lambda: self.cpu
        self.entered.set()
        assert self.go.wait(30)


@pytest.mark.parametrize(("cpu", "replaced"), [(MAX_CPU_SECONDS + 1, True), (MAX_CPU_SECONDS - 1, False)])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_stuck_worker_is_replaced_and_others_are_answered(
    masks: MaskWorkers, cpu: float, replaced: bool, is_first: bool
):
    leave = threading.Event()
    stuck = [Stuck(masks, leave, cpu, is_first) for _ in range(1 if is_first else WORKERS)]
    for guide in stuck:
        assert guide.entered.wait(30) and guide.is_overdue() is replaced
        masks.abandon(guide)
    source = grammar(KIND.REGEX, "a[bc]")
    if replaced:
        require_two_results(masks, source)
    leave.set()
    require_two_results(masks, source)  # a worker that comes back goes on


def require_two_results(masks: MaskWorkers, source: Grammar) -> None:
    """A first one and a later one, which different workers compute."""
    guide = answered(masks.create_guide(source))
    assert guide.take_forced()
    guide.advance(ord("b"))
    assert answered(guide).get_allowed()[END]


def test_a_grammar_that_is_slow_to_compile_delays_no_text_that_has_begun(masks: MaskWorkers):
    guide, leave = answered(masks.create_guide(grammar(KIND.REGEX, "a[bc]"))), threading.Event()
    compiling = [Stuck(masks, leave, 0.0, is_first=True) for _ in range(2 * WORKERS)]
    assert compiling[0].entered.wait(30) and guide.take_forced()
    guide.advance(ord("b"))
    assert answered(guide).get_allowed()[END]
    leave.set()


class Requeued(Stuck):
    """Is taken by a second worker, and keeps it, before the first one is done."""

    def work(self, vocabulary: CompilerVocabulary, *_: Any, **__: Any) -> None:
        if self.entered.is_set():
            super().work(vocabulary)
        else:
            self._cpu_clock = lambda: 0.0
            self.entered.set()
            self.entered_again = threading.Event()
            self.workers.put(self)
            assert self.entered_again.wait(30)


def test_a_worker_that_takes_a_guide_again_is_replaced(masks: MaskWorkers):
    leave = threading.Event()
    guide = Requeued(masks, leave, MAX_CPU_SECONDS + 1)
    wait_until(lambda: masks._in_progress[guide, False] == 2)
    guide.entered_again.set()
    wait_until(lambda: masks._in_progress[guide, False] == 1 and guide.is_overdue())
    masks.abandon(guide)
    assert (guide, False) in masks._stuck
    leave.set()
    wait_until(lambda: (guide, False) not in masks._in_progress)


def following(guide: Guide) -> tuple[GuidedSequences, TokenSequence]:
    """A sequence that follows a guide, with nothing else to compute."""
    constraint = Constraint(KIND.REGEX, "ab", field="guided_regex")
    sequence = TokenSequence(TokenRequest(PromptTokens((1, 2)), 9, constraint=constraint), (1, 2), 100)
    sequence.guide, sequence.id, sequence.computed = guide, 0, 1
    return GuidedSequences(), sequence


def test_a_busy_machine_fails_a_constraint_only_after_patience():
    now = [0.0]
    guide = Guide(lark(""), Nowhere(), lambda: now[0])
    guiding, sequence = following(guide)
    for now[0] in (MAX_CPU_SECONDS + 1, 10 * MAX_CPU_SECONDS, PATIENCE):
        assert guiding.find_failures([sequence]) == []
    now[0] = PATIENCE + 1
    ((_, error),) = guiding.find_failures([sequence])
    assert isinstance(error, EngineBusy) and error.retry_after and "no worker" in (error.cause or "")


def test_too_much_work_for_an_answer_is_the_constraints_fault():
    guide = Guide(lark(""), Nowhere())
    guide._cpu_clock = lambda: MAX_CPU_SECONDS + 1
    guiding, sequence = following(guide)
    ((_, error),) = guiding.find_failures([sequence])
    assert isinstance(error, InvalidValue) and error.param == "guided_regex" and "simpler" in error.message


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (LIMIT_CAUSE + "lexer error: too many states", InvalidValue),
        (DEAD_END, InvalidValue),
        (STOP_CAUSE + "InternalError", EngineError),
    ],
)
def test_what_ends_a_guide_is_the_callers_fault_only_where_it_is(cause: str, kind: type[AntiphonError]):
    guide = Guide(lark(""), Nowhere())
    guide.error, guide.is_ready = EngineError("it stopped", cause=cause), True
    guiding, sequence = following(guide)
    ((_, error),) = guiding.find_failures([sequence])
    assert type(error) is kind and error.cause == cause


GROWING = 'start: s\ns: "a" | s "a" | s s s'
STATES = "start: /(a|b)*a(a|b){40}/"


@pytest.mark.parametrize(
    ("source", "limit"),
    [
        (GROWING, "max_items_in_row"),
        (GROWING, "step_max_items"),
        (STATES, "step_lexer_fuel"),
        (STATES, "max_lexer_states"),
    ],
)
def test_a_passed_matcher_limit_is_told_from_a_defect(source: str, limit: str):
    words = CompilerVocabulary(TOKENS)
    few: dict[str, Any] = {limit: 3}
    words.limits = LLParserLimits(**few)
    matcher = Matcher(lark(source), words)

    def follow() -> None:
        for _ in range(20):
            matcher.compute_mask()
            matcher.find_forced()
            matcher.consume([ord("a")])

    with pytest.raises(EngineError) as raised:
        follow()
    assert is_caused_by_constraint(raised.value), raised.value.message


def test_a_forbidden_token_is_our_fault_and_is_not_logged():
    matcher = Matcher(grammar(KIND.REGEX, "ab"), CompilerVocabulary(TOKENS))
    with pytest.raises(EngineError, match='"c"') as raised:
        matcher.consume([ord("c")])
    assert not is_caused_by_constraint(raised.value) and raised.value.cause == STOP_CAUSE + "InternalError"


def test_a_clock_of_cpu_is_of_its_thread_alone_and_ends_with_it():
    clocks, begun, go = list[Callable[[], float]](), threading.Event(), threading.Event()

    def wait() -> None:
        clocks.append(create_cpu_clock())
        begun.set()
        assert go.wait(30)

    thread = threading.Thread(target=wait)
    thread.start()
    assert begun.wait(30)
    own, before = create_cpu_clock(), time.monotonic()
    start = own()
    while own() - start < 0.05:
        sum(range(1000))
    (other,) = clocks
    assert other() < 0.05 <= own() - start <= time.monotonic() - before + 0.01
    go.set()
    thread.join()  # which returns a moment before the system has ended the thread
    end = time.monotonic() + 30
    while other() != 0.0 and time.monotonic() < end:
        time.sleep(0.001)
    assert other() == 0.0


def table(kinds: Callable[[int], TokenKind], ends: tuple[int, ...]) -> Table:
    pieces = tuple(bytes([token]) for token in range(256))
    return Table(pieces, tuple(kinds(token) for token in range(256)), {}, ends)


def test_only_text_tokens_count_and_a_model_must_be_able_to_end():
    found = build_token_table(
        table(lambda token: TokenKind.CONTROL if token == 7 else TokenKind.NORMAL, (9, 10))
    )
    assert found.pieces[7] == found.pieces[9] == b"" and found.pieces[8] == b"\x08" and found.ends == (9, 10)
    with pytest.raises(UnsupportedParameter):
        build_token_table(table(lambda token: TokenKind.NORMAL, ()))


def test_a_revoked_tokenizer_is_called_no_more():
    inside, leave = threading.Event(), threading.Event()
    calls: list[bytes] = []

    def tokenize(text: bytes) -> list[int]:
        calls.append(text)
        inside.set()
        assert leave.wait(30)
        return [1]

    lent = RevocableTokenizer(tokenize)
    caller = threading.Thread(target=lent, args=(b"a",))
    back = threading.Thread(target=lent.revoke)
    caller.start()
    assert inside.wait(30)
    back.start()
    back.join(0.05)
    assert back.is_alive(), "it was taken back from under a call"
    leave.set()
    back.join(30)
    caller.join(30)
    assert not back.is_alive() and lent(b"b") == [] and calls == [b"a"]


def test_a_guide_that_fails_within_a_step_ends_in_the_next(masks: MaskWorkers):
    """Its worker goes on while the decode thread looks at it."""
    guiding, request = GuidedSequences(), TokenRequest(PromptTokens((1, 2)), 9)
    sequence = TokenSequence(request, (1, 2), 100)
    sequence.guide = guide = answered(masks.create_guide(grammar(KIND.CHOICE, '["ab"]')))
    sequence.id, sequence.computed = 0, 1
    guide.record_settled()
    assert guiding.find_failures([sequence]) == []
    guide.error = EngineError("it cannot go on")
    assert guiding.collect_forced([sequence]) == []
    assert [one for one, _ in guiding.find_failures([sequence])] == [sequence]
