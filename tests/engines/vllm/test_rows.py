"""Antiphon's sampler in vLLM's batch: rows come, move, are preempted and fail."""

import numpy as np
import pytest

from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.mask_workers import MaskWorkers
from antiphon.constraints.matching import TokenTable
from antiphon.domain.request import Mirostat, Sampling
from antiphon.engines.sampling import Sampler, SamplingState
from antiphon.engines.vllm.rows import RowRequest, RowTable, decode_row, encode_row
from antiphon.errors import AntiphonError, InvalidValue

SIZE = 32
RANDOM = np.random.default_rng(7)
LOGITS = RANDOM.normal(size=(40, SIZE)).astype(np.float32) * 3
STEERED = Sampling(temperature=1.3, seed=11, mirostat=Mirostat(), repetition_penalty=1.2)


class Batch:
    """A table of rows, and what it reported."""

    def __init__(self, get_guides=None):
        self.errors: dict[str, AntiphonError] = {}
        self.table = RowTable(SIZE, 4, self.errors.__setitem__, get_guides)

    def add(self, index, name, sampling=STEERED, output=None, **fields):
        row = RowRequest(name, sampling, 0, (2,), (), fields.pop("max_tokens", 40), **fields)
        output = [] if output is None else output
        self.table.add(index, decode_row(encode_row(row)), (1, 5), output)
        return output

    def step(self, index, logits):
        """The token that the row would get."""
        self.table.accept_committed()
        return self.table.choose(logits[None], [self.table.rows[index]])[0]


def draw_alone(sampling, count):
    """The tokens of a sequence without vLLM."""
    state = SamplingState(sampling, 0, None, (1, 5), (2,), (), SIZE)
    sampler = Sampler(SIZE)
    return [getattr(sampler.draw(row[None], [state])[0], "token") for row in LOGITS[:count]]  # noqa: B009


def test_a_row_draws_as_the_embedded_engine_does():
    batch, expected = Batch(), draw_alone(STEERED, 20)
    output = batch.add(0, "a")
    for row in LOGITS[:20]:
        output.append(batch.step(0, row))
    assert output == expected


def test_a_discarded_token_changes_nothing():
    batch, expected = Batch(), draw_alone(STEERED, 10)
    output = batch.add(0, "a")
    for other, row in zip(LOGITS[20:], LOGITS[:10], strict=False):
        batch.step(0, other)
        output.append(batch.step(0, row))
    assert output == expected


def test_a_preempted_row_goes_on_where_it_was():
    batch, expected = Batch(), draw_alone(STEERED, 10)
    output = batch.add(0, "a")
    for row in LOGITS[:5]:
        output.append(batch.step(0, row))
    batch.table.remove(0)
    again = batch.add(2, "a", output=list(output))
    for row in LOGITS[5:10]:
        again.append(batch.step(2, row))
    assert again == expected


def test_rows_move_and_swap():
    batch = Batch()
    for index, name in enumerate("abc"):
        batch.add(index, name)
    batch.table.move(0, 2, is_swap=True)
    batch.table.move(2, 1, is_swap=False)
    assert {at: row.request.sequence for at, row in batch.table.rows.items()} == {0: "c", 1: "a"}
    batch.table.remove(7)
    batch.add(1, "d")
    assert batch.table.rows[1].request.sequence == "d"


def test_an_ended_row_is_forgotten():
    batch = Batch()
    output = batch.add(0, "a", max_tokens=2)
    output += [5, 6]
    batch.table.remove(0)
    output = batch.add(0, "b")
    output += [2]
    batch.table.remove(0)
    assert not batch.table._preempted
    for at in range(9):
        batch.add(0, f"gone {at}")
        batch.table.remove(0)
    assert len(batch.table._preempted) == 4


def test_a_row_without_a_possible_token_fails_alone():
    batch = Batch()
    batch.add(0, "stuck", Sampling(temperature=0, allowed_token_ids=(2,), min_tokens=3))
    batch.add(1, "free", Sampling(temperature=0))
    batch.table.accept_committed()
    tokens = batch.table.choose(LOGITS[:2], list(batch.table.rows.values()))
    assert list(batch.errors) == ["stuck"] and isinstance(batch.errors["stuck"], InvalidValue)
    assert tokens[1] == int(LOGITS[1].argmax())
    batch.errors.clear()
    batch.table.choose(LOGITS[:2], list(batch.table.rows.values()))
    assert not batch.errors, "it is told once"


def test_a_row_whose_state_cannot_be_made_fails_alone():
    batch = Batch()
    batch.add(0, "odd", Sampling(logit_bias=((99, 1.0),)))
    assert "no token id" in batch.errors["odd"].message
    assert batch.step(0, LOGITS[0]) == 0


@pytest.fixture
def guides():
    pieces = tuple(bytes([97 + index % 26]) if index > 4 else b"" for index in range(SIZE))
    workers = MaskWorkers(TokenTable(pieces, (2,)))
    yield workers
    workers.close()


def test_a_constrained_row_draws_only_what_is_allowed(guides):
    batch = Batch(lambda: guides)
    output = batch.add(0, "a", Sampling(temperature=1.5, seed=3), grammar=Grammar("start: /[fg]{3}/"))
    for row in LOGITS[:8]:
        token = batch.step(0, row)
        output.append(token)
        if token == 2:
            break
    text = "".join(chr(97 + token % 26) for token in output[:-1])
    assert output[-1] == 2 and len(text) == 3 and set(text) <= set("fg")


def test_a_constraint_that_cannot_go_on_fails_its_row(guides):
    batch = Batch(lambda: guides)
    output = batch.add(0, "a", Sampling(temperature=0), grammar=Grammar('start: "f!"'))
    for row in LOGITS[:4]:
        output.append(batch.step(0, row))
    assert "no token of this model can satisfy" in batch.errors["a"].message
