"""Who sees which limits, and who may change them."""

import pytest

from antiphon.auth.base import RequestedScope
from antiphon.domain.identity import Actor
from antiphon.domain.limits import Amounts, Measure, Subject, Window
from antiphon.domain.tenancy import AuditSelection, KeyKind
from antiphon.domain.values import replace
from antiphon.errors import Conflict, InvalidValue, MissingParameter, NotFound, PermissionDenied
from antiphon.limits.local import LocalLimiter
from antiphon.services.limits import LimitService
from antiphon.services.policy import MAX_LIMITS, KeyRequest, LimitRequest
from antiphon.store.database import Database
from antiphon.store.tenancy import SqlRules
from antiphon_testing.scripted_engine import FakeClock
from tests.support.tenancy import ADMIN, World


class Limited(World):
    """The same people, with limits."""

    def __init__(self, folder):
        super().__init__(folder)
        changes, database = self.tenants._changes, Database(f"sqlite:///{folder}/antiphon.db")
        self.limiter = LocalLimiter(FakeClock())
        self.limiting = LimitService(changes, SqlRules(database), self.limiter)

    async def service(self, project) -> str:
        made = await self.tenants.add_key(ADMIN, KeyRequest(KeyKind.SERVICE, project=project))
        return made.key.id

    async def set(self, actor: Actor, subject: Subject, target: str, **said):
        usual = LimitRequest(subject, target, Measure.REQUESTS, 10, Window.MINUTE)
        return await self.limiting.add(actor, replace(usual, **said))

    def seen(self, actor, **how):
        return [each.id for each in self.limiting.list_limits(actor, **how)]


@pytest.fixture
async def world(tmp_path):
    made = Limited(tmp_path)
    yield await made.people()
    made.changes.close()


async def test_the_operator_sets_any_limit_and_the_audit_has_each(world):
    key = await world.service(world.one)
    targets = {Subject.KEY: key, Subject.USER: world.ann, Subject.PROJECT: world.one, Subject.MODEL: "m"}
    made = [await world.set(ADMIN, subject, target) for subject, target in targets.items()]
    assert world.seen(ADMIN) == [each.id for each in made]
    assert world.seen(ADMIN, subject=Subject.USER) == [made[1].id]
    assert world.seen(ADMIN, target="m") == [made[3].id]
    changed = await world.limiting.change(ADMIN, made[0].id, 20, None)
    assert (changed.amount, changed.note, changed.created) == (20, "", made[0].created)
    await world.limiting.remove(ADMIN, made[3].id)
    assert world.seen(ADMIN) == [each.id for each in made[:3]]
    audit = await world.tenants.list_audit(ADMIN, 10, None, AuditSelection(target=made[0].id))
    assert [entry.action for entry in audit] == ["limit.change", "limit.create"]
    assert (await world.tenants.list_audit(ADMIN, 1, None, AuditSelection()))[0].action == "limit.remove"
    with pytest.raises(NotFound):
        await world.limiting.remove(ADMIN, made[3].id)


async def test_an_owner_limits_the_keys_that_are_for_the_project_alone(world):
    ann = await world.actor(world.ann, project=world.one)
    service, other = await world.service(world.one), await world.service(world.two)
    bens = await world.tenants.add_key(
        ADMIN, KeyRequest(KeyKind.ACCESS_TOKEN, user=world.ben, project=world.one)
    )
    free = await world.tenants.add_key(ADMIN, KeyRequest(KeyKind.ACCESS_TOKEN, user=world.ann))
    for key in (service, bens.key.id):
        made = await world.set(ann, Subject.KEY, key)
        assert (await world.limiting.change(ann, made.id, 3, "less")).amount == 3
        assert made.id in world.seen(ann)
        await world.limiting.remove(ann, made.id)
    with pytest.raises(NotFound):
        await world.set(ann, Subject.KEY, other)
    with pytest.raises(NotFound):
        await world.set(ann, Subject.KEY, free.key.id)  # hers, but this token is for the project alone
    unbound = await world.actor(world.ann)
    with pytest.raises(PermissionDenied):
        await world.set(unbound, Subject.KEY, free.key.id)
    for subject, target in ((Subject.PROJECT, world.one), (Subject.USER, world.ann), (Subject.MODEL, "m")):
        with pytest.raises(PermissionDenied):
            await world.set(ann, subject, target)
    for subject, target in ((Subject.PROJECT, world.two), (Subject.USER, world.ben)):
        with pytest.raises(NotFound):
            await world.set(ann, subject, target)


async def test_others_see_the_limits_of_what_is_theirs_and_change_none(world):
    service = await world.service(world.one)
    mine = await world.tenants.add_key(
        ADMIN, KeyRequest(KeyKind.ACCESS_TOKEN, user=world.ben, project=world.one)
    )
    limits = {
        name: (await world.set(ADMIN, subject, target)).id
        for name, subject, target in (
            ("service", Subject.KEY, service),
            ("token", Subject.KEY, mine.key.id),
            ("ben", Subject.USER, world.ben),
            ("ann", Subject.USER, world.ann),
            ("one", Subject.PROJECT, world.one),
            ("two", Subject.PROJECT, world.two),
            ("model", Subject.MODEL, "m"),
        )
    }
    ben = await world.actor(world.ben, project=world.one)
    assert world.seen(ben) == [limits["token"], limits["ben"], limits["one"]]
    dan = await world.actor(world.dan)
    assert world.seen(dan) == [limits["two"]]
    ann = await world.actor(world.ann)
    assert world.seen(ann) == [limits[name] for name in ("service", "token", "ann", "one")]
    for actor, name in ((ben, "token"), (ben, "ben"), (ben, "one"), (ann, "one"), (dan, "two")):
        with pytest.raises(PermissionDenied):
            await world.limiting.remove(actor, limits[name])
        with pytest.raises(PermissionDenied):
            await world.limiting.change(actor, limits[name], 10**6, None)
    for actor, name in ((ben, "service"), (ben, "model"), (dan, "one"), (dan, "service"), (ann, "two")):
        with pytest.raises(NotFound):
            await world.limiting.remove(actor, limits[name])
        with pytest.raises(NotFound):
            await world.limiting.get_status(actor, limits[name])


@pytest.mark.parametrize(
    ("said", "error", "param"),
    [
        ({"measure": Measure.CONCURRENT}, InvalidValue, "window"),
        ({"window": None}, MissingParameter, "window"),
        ({"subject": Subject.MODEL, "target": "m", "models": "m*"}, InvalidValue, "models"),
        ({"target": "proj_none"}, NotFound, None),
        ({"subject": Subject.KEY, "target": "default"}, NotFound, None),
        ({"subject": Subject.USER, "target": "default"}, NotFound, None),
    ],
)
async def test_a_limit_that_means_nothing_is_refused(world, said, error, param):
    said = {"subject": Subject.PROJECT, "target": "default"} | said
    with pytest.raises(error) as refused:
        await world.set(ADMIN, **said)
    assert refused.value.param == param
    assert world.seen(ADMIN) == []


async def test_the_same_is_not_limited_twice_nor_by_too_many(world):
    await world.set(ADMIN, Subject.MODEL, "m")
    with pytest.raises(Conflict, match="change the amount of limit_"):
        await world.set(ADMIN, Subject.MODEL, "m", amount=3)
    for number in range(MAX_LIMITS):
        await world.set(ADMIN, Subject.PROJECT, "default", models=f"m{number}")
    with pytest.raises(Conflict, match="which is the most"):
        await world.set(ADMIN, Subject.PROJECT, "default", models="n")


async def test_a_limit_says_how_it_stands(world):
    made = await world.set(ADMIN, Subject.PROJECT, "default")
    await world.limiter.reserve("a", [made], Amounts(requests=3))
    assert (await world.limiting.get_status(ADMIN, made.id)).remaining == 7


async def test_a_keys_limits_move_to_its_successor_with_their_counts(world):
    key = await world.service(world.one)
    made = await world.set(ADMIN, Subject.KEY, key, amount=3, note="bot")
    await world.set(ADMIN, Subject.KEY, key, measure=Measure.CONCURRENT, window=None)
    other = await world.set(ADMIN, Subject.KEY, await world.service(world.one))
    await world.limiter.reserve("a", [made], Amounts(requests=2))
    new = await world.tenants.rotate_key(ADMIN, key, 60)
    limits = world.limiting.list_limits(ADMIN, target=new.key.id)
    assert [(each.measure, each.amount, each.note) for each in limits] == [
        (Measure.REQUESTS, 3, "bot"),
        (Measure.CONCURRENT, 10, ""),
    ]
    assert {each.target for each in limits} == {new.key.id} and limits[0].id == made.id
    assert (await world.limiting.get_status(ADMIN, made.id)).remaining == 1
    assert (
        world.limiting.list_limits(ADMIN, target=key) == limits
    )  # the old one is not free of them meanwhile
    assert other not in limits


async def test_a_family_has_the_limits_of_one_key(world):
    key = await world.service(world.one)
    await world.set(ADMIN, Subject.KEY, key)
    new = await world.tenants.rotate_key(ADMIN, key, 60)
    world.now += 1
    second = await world.tenants.rotate_key(ADMIN, new.key.id, 60)
    with pytest.raises(Conflict, match="such a limit"):
        await world.set(ADMIN, Subject.KEY, new.key.id, amount=99)
    for number in range(MAX_LIMITS - 1):
        await world.set(ADMIN, Subject.KEY, key, models=f"m{number}")
    with pytest.raises(Conflict, match="which is the most"):
        await world.set(ADMIN, Subject.KEY, second.key.id, models="n")
    shown = world.tenants.list_limits([new.key, second.key])
    assert len(shown[new.key.id]) == MAX_LIMITS and shown[new.key.id] == shown[second.key.id]


async def test_who_holds_the_old_key_sees_its_limits_while_it_lasts(world):
    made = await world.tenants.add_key(ADMIN, KeyRequest(KeyKind.SERVICE, project=world.one))
    await world.set(ADMIN, Subject.KEY, made.key.id)
    await world.tenants.rotate_key(ADMIN, made.key.id, 60)
    assert len(world.seen(await world.ring.verify(made.secret, RequestedScope()))) == 1
