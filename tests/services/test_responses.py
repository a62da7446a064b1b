"""What callers meet of kept responses: limits, errors, and a store that fails or is off."""

import json
import time

import pytest

from antiphon.domain.values import replace
from antiphon.errors import (
    InvalidValue,
    NotFound,
    PreviousResponseNotFound,
    StoreUnavailable,
    UnsupportedParameter,
)
from antiphon.services.response_memory import ITEM_BYTES, OVERHEAD_BYTES, ResponseMemory
from antiphon.services.responses import DAY_S, ResponseKeeper, ResponseLimits
from antiphon_testing.scripted_engine import FakeClock
from tests.support.kept_responses import NOW, keep, make_actor, make_response

ONE, TWO = make_actor("one"), make_actor("two")


class BrokenMemory(ResponseMemory):
    async def add(self, kept, now):
        raise StoreUnavailable("the database does not answer")


@pytest.fixture
def clock():
    return FakeClock(wall=float(NOW))


@pytest.fixture
def keeper(clock):
    return ResponseKeeper(ResponseMemory(), ResponseLimits(days=2), clock)


async def test_a_project_continues_its_own_until_they_expire(keeper, clock):
    assert await keeper.save(make_response("a"), ONE)
    assert await keeper.save(make_response("b", "a"), ONE)
    assert len(await keeper.load_chain("resp_b", ONE)) == 4
    clock.advance(2 * DAY_S - 1)
    assert (await keeper.load("resp_a", ONE)).id == "resp_a"
    clock.advance(1)
    with pytest.raises(PreviousResponseNotFound, match="Previous response with id 'resp_b' not found"):
        await keeper.load_chain("resp_b", ONE)


async def test_another_projects_and_unknown_ids_are_refused_alike(keeper):
    await keeper.save(make_response("a"), ONE)
    refusals = []
    for id_, item in (("resp_a", "msg_a"), ("resp_0", "msg_0")):
        for ask in (
            keeper.load(id_, TWO),
            keeper.delete(id_, TWO),
            keeper.load_chain(id_, TWO),
            keeper.load_items([item], TWO),
        ):
            with pytest.raises((NotFound, PreviousResponseNotFound)) as refused:
                await ask
            error = refused.value
            refusals.append(
                (error.status, error.code, error.param, error.message.replace(id_, "ID").replace(item, "ID"))
            )
    assert refusals[:4] == refusals[4:]
    assert [each[:3] for each in refusals[:4]] == [
        (404, "not_found", None),
        (404, "not_found", None),
        (400, "previous_response_not_found", "previous_response_id"),
        (404, "not_found", "input"),
    ]
    assert (await keeper.load("resp_a", ONE)).id == "resp_a"


@pytest.mark.parametrize("id_", ["", "resp_\0", "resp_\ud800", "r" * 129, "' OR 1=1 --", "resp_é"])
async def test_ids_that_no_database_takes_are_unknown(keeper, id_):
    for ask in (keeper.load(id_, ONE), keeper.delete(id_, ONE), keeper.load_items([id_], ONE)):
        with pytest.raises(NotFound):
            await ask
    with pytest.raises(PreviousResponseNotFound):
        await keeper.load_chain(id_, ONE)


async def test_a_deleted_response_is_gone_with_its_items(keeper):
    await keeper.save(make_response("a"), ONE)
    await keeper.delete("resp_a", ONE)
    with pytest.raises(NotFound, match="Response with id 'resp_a' not found"):
        await keeper.delete("resp_a", ONE)
    with pytest.raises(NotFound, match="Item with id 'msg_a' not found"):
        await keeper.load_items(["msg_a"], ONE)


async def test_a_store_that_fails_ends_no_answer(clock):
    keeper = ResponseKeeper(BrokenMemory(), ResponseLimits(), clock)
    assert not await keeper.save(make_response("a"), ONE)
    assert keeper.refusals == {"failed": 1, "too_large": 0}


async def test_a_response_that_is_too_large_is_not_kept(clock):
    keeper = ResponseKeeper(ResponseMemory(), ResponseLimits(max_bytes=1000), clock)
    assert not await keeper.save(make_response("a", text="t" * 1000), ONE)
    assert keeper.refusals == {"failed": 0, "too_large": 1}
    with pytest.raises(NotFound):
        await keeper.load("resp_a", ONE)


async def test_a_chain_and_items_beyond_the_bound_are_refused(clock):
    keeper = ResponseKeeper(ResponseMemory(), ResponseLimits(max_chain_bytes=3000), clock)
    for name, previous in (("a", None), ("b", "a")):
        await keeper.save(make_response(name, previous, "t" * 1000), ONE)
    assert len(await keeper.load_chain("resp_a", ONE)) == 2
    with pytest.raises(InvalidValue, match="begin a new one") as refused:
        await keeper.load_chain("resp_b", ONE)
    assert refused.value.param == "previous_response_id"
    assert set(await keeper.load_items(["msg_a", "msg_b"], ONE)) == {"msg_a", "msg_b"}
    for many in (["msg_a"] * 4, ["msg_a", "msg_b", "msg_a_in"]):
        with pytest.raises(InvalidValue, match="more than 3,000 bytes"):
            await keeper.load_items(many, ONE)


async def test_a_store_that_is_off_refuses_by_name(clock):
    keeper = ResponseKeeper(None, ResponseLimits(), clock)
    assert not keeper.is_on
    assert not await keeper.save(make_response("a"), ONE)
    assert keeper.refusals == {"failed": 0, "too_large": 0}
    for field, ask in (
        ("previous_response_id", keeper.load_chain("resp_a", ONE)),
        ("input", keeper.load_items(["msg_a"], ONE)),
    ):
        with pytest.raises(UnsupportedParameter, match=r"responses\.store is false") as refused:
            await ask
        assert refused.value.param == field
    for find in (keeper.load, keeper.delete):
        with pytest.raises(NotFound):
            await find("resp_a", ONE)


async def add_many(count):
    """Adds small and middle-sized responses. Returns the memory, and the most bytes that it counted."""
    memory = ResponseMemory(1 << 20)
    for number in range(count):
        response = make_response(f"r{number}", text="t" * (number % 7 * 300))
        assert await memory.add(keep(replace(response, created=NOW + number)), NOW)
    return memory


def require_bounded(memory):
    (responses,) = memory._responses.values()
    assert sum(kept.response.size + OVERHEAD_BYTES + 2 * ITEM_BYTES for kept in responses.values()) <= 1 << 20
    assert len(memory._items) == 2 * len(responses)
    assert set(memory._bytes) == set(memory._responses) == {"one"}


async def test_many_items_of_one_response_are_found_in_one_pass():
    """Each of them would divide the whole response again, while the process serves nobody else."""
    ids = [f"msg_{number}" for number in range(1_000)]
    items = json.dumps([{"type": "message", "id": id_, "text": "x" * 100} for id_ in ids]).encode()
    memory = ResponseMemory()
    await memory.add(keep(replace(make_response("a"), input=items)), NOW)
    begin = time.process_time()
    await memory.find_items("one", ids[:1], NOW, 1 << 20)
    one = time.process_time() - begin
    found = await memory.find_items("one", ids, NOW, 1 << 20)
    assert list(map(json.loads, found.values())) and found.keys() == set(ids)
    assert time.process_time() - begin - one < 100 * one


async def test_the_memory_has_a_bound():
    require_bounded(await add_many(2_000))


@pytest.mark.soak
async def test_a_hundred_thousand_responses_need_no_more_memory():
    import resource

    require_bounded(await add_many(2_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    require_bounded(await add_many(100_000))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4 * 1024  # KiB
