"""Which actor a key is, and everything that makes it none."""

import pytest

from antiphon.auth.base import NO_SCOPE, REFUSAL, RequestedScope
from antiphon.auth.keyring import SERVICE_ACTOR, Keyring
from antiphon.auth.secrets import Pepper, extract_prefix, generate_key
from antiphon.domain.identity import ActorKind, Right
from antiphon.domain.tenancy import Grant, Key, KeyKind, Membership, Project, ProjectRole, User
from antiphon.domain.values import replace
from antiphon.errors import AuthenticationFailed, MissingParameter, PermissionDenied
from antiphon.store.base import Directory, StoredKey

PEPPER = Pepper(b"p" * 32)
NOW = 1_000
NOBODY = NO_SCOPE


class World:
    """Two projects; Ann owns the first and views the second, Ben is a member of the first."""

    def __init__(self):
        self.now = NOW
        self.ring = Keyring(PEPPER, lambda: self.now)
        self.directory = Directory(
            (Project("default", "default", 0), Project("one", "One", 0), Project("two", "Two", 0)),
            (User("ann", "Ann", 0), User("ben", "Ben", 0)),
            (
                Membership("one", "ann", ProjectRole.OWNER, 0),
                Membership("two", "ann", ProjectRole.VIEWER, 0),
                Membership("one", "ben", ProjectRole.MEMBER, 0),
            ),
        )

    def give(self, kind, **said):
        token = generate_key()
        key = Key(f"key-{token[3:9]}", kind, extract_prefix(token), 0, "admin", **said)
        self.learn(keys=(*self.directory.keys, StoredKey(key, PEPPER.digest(token))))
        return token

    def learn(self, **changes):
        self.directory = replace(self.directory, **changes)
        self.ring.replace_directory(self.directory)

    def change_keys(self, **changes):
        self.learn(
            keys=tuple(StoredKey(replace(kept.key, **changes), kept.digest) for kept in self.directory.keys)
        )


@pytest.fixture
def world():
    return World()


async def test_a_service_key_acts_for_its_project_and_members(world):
    token = world.give(KeyKind.SERVICE, project="one", grant=Grant(("cantor*",), ("/v1/*",)))
    actor = await world.ring.verify(token, NOBODY)
    assert (actor.kind, actor.project, actor.user) == (ActorKind.SERVICE_KEY, "one", None)
    assert Right.GENERATE in actor.rights
    assert Right.MANAGE not in actor.rights
    assert (actor.may_use("cantor-2"), actor.may_use("llama")) == (True, False)
    assert (actor.may_call("/v1/models"), actor.may_call("/tokenize")) == (True, False)
    assert (await world.ring.verify(token, RequestedScope("one", "ben"))).user == "ben"
    with pytest.raises(PermissionDenied, match="another project"):
        await world.ring.verify(token, RequestedScope(project="two"))
    with pytest.raises(PermissionDenied, match="members of its project"):
        await world.ring.verify(token, RequestedScope(user="stranger"))


async def test_an_access_token_speaks_in_the_projects_of_its_user(world):
    token = world.give(KeyKind.ACCESS_TOKEN, user="ann")
    with pytest.raises(MissingParameter, match="several projects: One \\(one\\), Two \\(two\\); name"):
        await world.ring.verify(token, NOBODY)
    owner = await world.ring.verify(token, RequestedScope(project="one"))
    viewer = await world.ring.verify(token, RequestedScope(project="two"))
    assert (owner.kind, owner.user, owner.project) == (ActorKind.USER, "ann", "one")
    assert (Right.GENERATE in owner.rights, Right.GENERATE in viewer.rights) == (True, False)
    for chosen in (RequestedScope("default"), RequestedScope("none"), RequestedScope("one", "ben")):
        with pytest.raises(PermissionDenied):
            await world.ring.verify(token, chosen)
    ben = world.give(KeyKind.ACCESS_TOKEN, user="ben")
    assert (await world.ring.verify(ben, NOBODY)).project == "one"


async def test_a_token_for_one_project_is_for_no_other(world):
    token = world.give(KeyKind.ACCESS_TOKEN, user="ann", project="two")
    assert (await world.ring.verify(token, NOBODY)).project == "two"
    with pytest.raises(PermissionDenied, match="for another project"):
        await world.ring.verify(token, RequestedScope("one"))


async def test_the_admin_key_may_everything(world):
    token = world.give(KeyKind.ADMIN)
    actor = await world.ring.verify(token, NOBODY)
    assert actor.admin
    assert actor.rights == frozenset(Right)
    assert (await world.ring.verify(token, RequestedScope("two", "ben"))).project == "two"
    for chosen in (RequestedScope("none"), RequestedScope(user="none")):
        with pytest.raises(PermissionDenied, match="there is no"):
            await world.ring.verify(token, chosen)


def revoked(world):
    world.change_keys(revoked=NOW - 1)


def expired(world):
    world.change_keys(expires=NOW)


def archived(world):
    world.learn(projects=tuple(replace(each, archived=1) for each in world.directory.projects))


def disabled(world):
    world.learn(users=tuple(replace(each, disabled=1) for each in world.directory.users))


def forgotten(world):
    world.learn(keys=())


@pytest.mark.parametrize("happens", [revoked, expired, archived, disabled, forgotten])
async def test_ended_and_unknown_keys_get_the_same_refusal(world, happens):
    token = world.give(KeyKind.ACCESS_TOKEN, user="ann", project="one")
    await world.ring.verify(token, NOBODY)
    happens(world)
    for each in (token, generate_key(), "ak_", "ak_" + "x" * 4000, token + "x", token[:-1]):
        with pytest.raises(AuthenticationFailed) as refused:
            await world.ring.verify(each, NOBODY)
        assert refused.value.message == REFUSAL


async def test_a_key_ends_at_its_time_and_not_before(world):
    token = world.give(KeyKind.SERVICE, project="one", expires=NOW + 10)
    await world.ring.verify(token, NOBODY)
    world.now = NOW + 10
    with pytest.raises(AuthenticationFailed):
        await world.ring.verify(token, NOBODY)


async def test_a_key_that_was_used_follows_each_change(world):
    token = world.give(KeyKind.ACCESS_TOKEN, user="ben")
    first = await world.ring.verify(token, NOBODY)
    assert await world.ring.verify(token, NOBODY) is first
    assert (await world.ring.verify(token, RequestedScope("one", "ben"))).user == "ben"
    world.change_keys(grant=Grant(("cantor*",), None), expires=NOW + 10)
    narrower = await world.ring.verify(token, NOBODY)
    assert (narrower.may_use("llama"), narrower.expires) == (False, NOW + 10)
    world.learn(memberships=(Membership("two", "ben", ProjectRole.VIEWER, 0),))
    viewer = await world.ring.verify(token, NOBODY)
    assert (viewer.project, Right.GENERATE in viewer.rights) == ("two", False)
    world.now = NOW + 10
    with pytest.raises(AuthenticationFailed):
        await world.ring.verify(token, NOBODY)


async def test_keys_that_begin_alike_are_two_keys(world):
    token = world.give(KeyKind.SERVICE, project="one")
    twin = token[:40] + "".join(reversed(token[40:]))
    with pytest.raises(AuthenticationFailed):
        await world.ring.verify(twin, NOBODY)


async def test_what_is_no_key_of_ours_is_left_to_others(world):
    assert await world.ring.verify("sk-something", NOBODY) is None


async def test_running_requests_go_on_until_their_key_is_ended(world):
    token, other = world.give(KeyKind.SERVICE, project="one"), world.give(KeyKind.ACCESS_TOKEN, user="ann")
    bot, bens = (
        await world.ring.verify(token, NOBODY),
        await world.ring.verify(token, RequestedScope("one", "ben")),
    )
    ann = await world.ring.verify(other, RequestedScope(project="two"))
    everything = world.directory

    def accepted():
        found = [world.ring.accepts(actor) for actor in (bot, bens, ann)]
        world.learn(**{name: getattr(everything, name) for name in ("users", "projects", "keys")})
        world.learn(memberships=everything.memberships)
        assert all(world.ring.accepts(actor) for actor in (bot, bens, ann))
        return found

    assert accepted() == [True, True, True]
    world.learn(users=(User("ann", "Ann", 0, disabled=5), User("ben", "Ben", 0)))
    assert accepted() == [True, True, False]
    world.learn(projects=(*everything.projects[:2], Project("two", "Two", 0, archived=5)))
    assert accepted() == [True, True, False]
    world.learn(memberships=everything.memberships[:2])
    assert accepted() == [True, False, True]
    first, *rest = everything.keys
    world.learn(keys=(replace(first, key=replace(first.key, revoked=5)), *rest))
    assert accepted() == [False, False, True]


async def test_running_requests_outlive_expired_keys_not_ended_ones(world):
    actor = await world.ring.verify(world.give(KeyKind.SERVICE, project="one", expires=NOW + 100), NOBODY)
    world.change_keys(expires=NOW + 10)
    world.now = NOW + 200
    world.change_keys(note="looked at again")
    assert world.ring.accepts(actor)
    world.change_keys(expires=world.now)
    assert not world.ring.accepts(actor)
    world.change_keys(note="and again")
    assert not world.ring.accepts(actor)
    world.change_keys(expires=world.now + 1)
    assert world.ring.accepts(actor)


async def test_the_key_of_the_settings_is_of_no_directory_and_goes_on(world):
    world.learn()
    assert world.ring.accepts(SERVICE_ACTOR)
