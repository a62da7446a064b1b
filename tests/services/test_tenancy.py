"""Who may change what, over a real database: nobody mints what they do not hold, and a change holds at
once."""

import threading

import anyio
import pytest

from antiphon.auth.base import RequestedScope
from antiphon.domain.identity import SERVICE_RIGHTS, Actor, ActorKind
from antiphon.domain.tenancy import AuditSelection, Grant, KeyKind, ProjectRole
from antiphon.domain.values import replace
from antiphon.errors import (
    AuthenticationFailed,
    Conflict,
    InvalidValue,
    MissingParameter,
    NotFound,
    PermissionDenied,
    StoreUnavailable,
)
from antiphon.services.policy import KeyRequest
from antiphon.store.tenancy import SqlTenancy
from tests.support.tenancy import ADMIN, World


@pytest.fixture
async def world(tmp_path):
    made = World(tmp_path)
    yield await made.people()
    made.changes.close()


async def test_new_keys_are_accepted_and_revoked_ones_refused_at_once(world):
    ann = await world.actor(world.ann)
    made = await world.tenants.add_key(ann, KeyRequest(KeyKind.SERVICE, project=world.one))
    assert (await world.ring.verify(made.secret, RequestedScope())).project == world.one
    await world.tenants.revoke_key(ann, made.key.id)
    with pytest.raises(AuthenticationFailed):
        await world.ring.verify(made.secret, RequestedScope())
    assert (await world.tenants.revoke_key(ann, made.key.id)).revoked is not None


async def test_the_store_holds_no_key(world, tmp_path):
    secret = await world.token(world.ann)
    world.changes.close()
    kept = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert secret.encode() not in kept
    assert secret[16:].encode() not in kept


async def test_a_rotated_key_is_accepted_until_the_overlap_ends(world):
    ann = await world.actor(world.ann)
    old = await world.tenants.add_key(
        ann, KeyRequest(KeyKind.SERVICE, project=world.one, grant=Grant(("a",)))
    )
    new = await world.tenants.rotate_key(ann, old.key.id, overlap=60)
    assert new.key.grant == old.key.grant
    for secret in (old.secret, new.secret):
        await world.ring.verify(secret, RequestedScope())
    world.now += 60
    await world.ring.verify(new.secret, RequestedScope())
    with pytest.raises(AuthenticationFailed):
        await world.ring.verify(old.secret, RequestedScope())
    with pytest.raises(InvalidValue, match="has ended"):
        await world.tenants.change_key(ann, old.key.id, lambda key: replace(key, expires=None))


async def test_no_key_is_rotated_that_would_not_be_accepted(world):
    key = await world.tenants.add_key(ADMIN, KeyRequest(KeyKind.SERVICE, project=world.one))
    token = await world.tenants.add_key(ADMIN, KeyRequest(KeyKind.ACCESS_TOKEN, user=world.ann))
    await world.tenants.change_project(ADMIN, world.one, None, None, True)
    await world.tenants.change_user(ADMIN, world.ann, lambda user: user, True)
    for issued, why in ((key, "archived"), (token, "disabled")):
        with pytest.raises(InvalidValue, match=why):
            await world.tenants.rotate_key(ADMIN, issued.key.id, overlap=0)
    await world.tenants.change_project(ADMIN, world.one, None, None, False)
    await world.ring.verify(key.secret, RequestedScope())


async def test_a_rotation_makes_neither_key_last_longer_than_its_date(world):
    wanted = KeyRequest(KeyKind.SERVICE, project=world.one, expires=1_010)
    old = await world.tenants.add_key(ADMIN, wanted)
    new = await world.tenants.rotate_key(ADMIN, old.key.id, overlap=9_999)
    assert world.tenants.get_key(ADMIN, old.key.id).expires == new.key.expires == 1_010


@pytest.mark.parametrize("overlap", [0, 60])
async def test_a_repeated_rotation_names_the_successor(world, overlap):
    old = (await world.tenants.add_key(ADMIN, KeyRequest(KeyKind.SERVICE, project=world.one))).key
    second = (await world.tenants.rotate_key(ADMIN, old.id, overlap)).key
    before = world.tenants.list_keys(ADMIN)
    with pytest.raises(Conflict, match=f"its successor {second.id}"):
        await world.tenants.rotate_key(ADMIN, old.id, overlap)
    assert world.tenants.list_keys(ADMIN) == before
    world.now += 1
    third = (await world.tenants.rotate_key(ADMIN, second.id, 60)).key
    with pytest.raises(Conflict, match=f"its successor {third.id}"):
        await world.tenants.rotate_key(ADMIN, old.id, overlap)


@pytest.mark.parametrize("own", [None, 9_000])
async def test_the_end_of_an_overlap_is_inherited_by_no_successor(world, own):
    wanted = KeyRequest(KeyKind.SERVICE, project=world.one, expires=own)
    old = await world.tenants.add_key(ADMIN, wanted)
    lost = (await world.tenants.rotate_key(ADMIN, old.key.id, 60)).key
    await world.tenants.revoke_key(ADMIN, lost.id)
    world.now += 1
    again = await world.tenants.rotate_key(ADMIN, old.key.id, 3_600)
    assert (again.key.expires, world.tenants.get_key(ADMIN, old.key.id).expires) == (own, 1_060)
    world.now = 1_100
    assert (await world.ring.verify(again.secret, RequestedScope())).id == again.key.id
    with pytest.raises(AuthenticationFailed):
        await world.ring.verify(old.secret, RequestedScope())


async def test_a_successors_end_is_passed_on_to_the_next_key(world):
    old = (await world.tenants.add_key(ADMIN, KeyRequest(KeyKind.SERVICE, project=world.one))).key
    second = (await world.tenants.rotate_key(ADMIN, old.id, 600)).key
    await world.tenants.change_key(ADMIN, second.id, lambda key: replace(key, expires=1_300))
    await world.tenants.revoke_key(ADMIN, second.id)
    assert (await world.tenants.rotate_key(ADMIN, old.id, 600)).key.expires == 1_300
    world.now = 1_300
    with pytest.raises(InvalidValue, match="has ended"):
        await world.tenants.rotate_key(ADMIN, old.id, 600)


async def test_a_token_gains_no_time_by_rotating_itself_in_its_overlap(world):
    made = await world.tenants.add_key(ADMIN, KeyRequest(KeyKind.ACCESS_TOKEN, user=world.ann))
    lost = (await world.tenants.rotate_key(ADMIN, made.key.id, 60)).key
    await world.tenants.revoke_key(ADMIN, lost.id)
    itself = await world.ring.verify(made.secret, RequestedScope())
    with pytest.raises(PermissionDenied, match="this key ends at 1060"):
        await world.tenants.rotate_key(itself, made.key.id, 60)


async def test_what_others_may_not_see_is_not_there(world):
    ann, ben, dan = [await world.actor(each) for each in (world.ann, world.ben, world.dan)]
    key = (await world.tenants.add_key(ann, KeyRequest(KeyKind.SERVICE, project=world.one))).key.id
    for actor in (ben, dan):
        with pytest.raises(NotFound):
            world.tenants.get_key(actor, key)
        for change in (
            world.tenants.revoke_key(actor, key),
            world.tenants.rotate_key(actor, key, 0),
            world.tenants.change_key(actor, key, lambda key: replace(key, note="mine")),
        ):
            with pytest.raises(NotFound):
                await change
    with pytest.raises(NotFound):
        world.tenants.list_members(dan, world.one)
    with pytest.raises(NotFound):
        await world.tenants.put_member(dan, world.one, world.dan, ProjectRole.OWNER)
    assert [project.id for project in world.tenants.list_projects(dan)] == [world.two]
    assert [user.id for user in world.tenants.list_users(dan)] == [world.dan]


async def test_members_and_viewers_create_only_their_own_tokens(world):
    for user in (world.ben, world.cleo):
        actor = await world.actor(user)
        made = await world.tenants.add_key(actor, KeyRequest(KeyKind.ACCESS_TOKEN, user=user))
        assert made.key in world.tenants.list_keys(actor)
        for wanted in (
            KeyRequest(KeyKind.SERVICE, project=world.one),
            KeyRequest(KeyKind.ACCESS_TOKEN, user=world.ann),
            KeyRequest(KeyKind.ADMIN),
        ):
            with pytest.raises(PermissionDenied):
                await world.tenants.add_key(actor, wanted)
        with pytest.raises(PermissionDenied):
            await world.tenants.put_member(actor, world.one, user, ProjectRole.OWNER)


async def test_only_the_operator_changes_projects_and_reads_the_audit(world):
    ann = await world.actor(world.ann)
    tenants = world.tenants
    for change in (
        tenants.add_project(ann, "Three", ""),
        tenants.change_project(ann, world.one, "Mine", None, None),
        tenants.add_user(ann, "Eve", None, ""),
        tenants.change_user(ann, world.ben, lambda user: user, True),
        tenants.list_audit(ann, 10, None, AuditSelection()),
    ):
        with pytest.raises(PermissionDenied):
            await change


async def test_nobody_makes_a_key_that_may_more_than_theirs(world):
    narrow = Grant(("cantor*",), ("/v1/*", "/admin/*"))
    ann = await world.actor(world.ann, grant=narrow)
    for grant in (Grant(), Grant(("*",), narrow.endpoints), Grant(("llama",), narrow.endpoints)):
        with pytest.raises(PermissionDenied, match="cannot have more models or endpoints"):
            await world.tenants.add_key(ann, KeyRequest(KeyKind.SERVICE, project=world.one, grant=grant))
    less = Grant(("cantor-1",), ("/v1/chat/*",))
    made = await world.tenants.add_key(ann, KeyRequest(KeyKind.SERVICE, project=world.one, grant=less))
    with pytest.raises(PermissionDenied, match="cannot have more"):
        await world.tenants.change_key(ann, made.key.id, lambda key: replace(key, grant=Grant()))
    wide = await world.tenants.add_key(ADMIN, KeyRequest(KeyKind.SERVICE, project=world.one))
    with pytest.raises(PermissionDenied, match="cannot have more"):
        await world.tenants.rotate_key(ann, wide.key.id, 0)


async def test_a_restricted_key_cannot_change_members(world):
    for grant in (Grant(("m",)), Grant(None, ("/admin/*",))):
        ann = await world.actor(world.ann, grant=grant)
        with pytest.raises(PermissionDenied, match="restricted to certain models or paths"):
            await world.tenants.put_member(ann, world.one, world.dan, ProjectRole.OWNER)
        for user in (world.ben, world.ann):
            with pytest.raises(PermissionDenied, match="restricted to certain models or paths"):
                await world.tenants.remove_member(ann, world.one, user)
    ann = await world.actor(world.ann)
    assert (
        await world.tenants.put_member(ann, world.one, world.ben, ProjectRole.VIEWER)
    ).role is ProjectRole.VIEWER


async def test_an_owner_draws_nobody_in_from_projects_of_others(world):
    """Whose tokens would have to name a project from then on; and ids cannot be told from those of nobody."""
    ann = await world.actor(world.ann)
    said = set()
    for user in (world.dan, world.dan.replace("user_", "user_0")):
        with pytest.raises(NotFound) as refused:
            await world.tenants.put_member(ann, world.one, user, ProjectRole.VIEWER)
        said.add(refused.value.message.replace(user, "USER"))
    assert said == {"there is no user USER"}
    assert (await world.actor(world.dan)).project == world.two
    await world.tenants.put_member(
        ADMIN, world.two, world.ann, ProjectRole.MEMBER
    )  # now they share a project
    bound = await world.actor(world.ann, project=world.one)
    with pytest.raises(NotFound):
        await world.tenants.put_member(bound, world.one, world.dan, ProjectRole.VIEWER)
    wide = await world.ring.verify(await world.token(world.ann), RequestedScope(project=world.one))
    assert (await world.tenants.put_member(wide, world.one, world.dan, ProjectRole.VIEWER)).user == world.dan


async def test_rotating_with_an_overlap_makes_no_keys_without_end(world, monkeypatch):
    monkeypatch.setattr("antiphon.services.policy.MAX_KEYS", 2)
    ann = await world.actor(world.ann)
    service = KeyRequest(KeyKind.SERVICE, project=world.one)
    key = (await world.tenants.add_key(ann, service)).key.id
    second = (await world.tenants.rotate_key(ann, key, 60)).key.id
    with pytest.raises(Conflict, match="revoke some first"):
        await world.tenants.rotate_key(ann, second, 60)
    world.now += 1
    third = (await world.tenants.rotate_key(ann, second, 0)).key.id  # no more than before
    assert (await world.tenants.rotate_key(ADMIN, third, 60)).secret


async def test_nobody_but_the_operator_makes_keys_without_end(world, monkeypatch):
    monkeypatch.setattr("antiphon.services.policy.MAX_KEYS", 3)
    ann = await world.actor(world.ann)
    token = KeyRequest(KeyKind.ACCESS_TOKEN, user=world.ann)
    service = KeyRequest(KeyKind.SERVICE, project=world.one)
    for wanted, room in ((token, 2), (service, 3)):
        made = [(await world.tenants.add_key(ann, wanted)).key.id for _ in range(room)]
        with pytest.raises(Conflict, match="revoke some first"):
            await world.tenants.add_key(ann, wanted)
        await world.tenants.revoke_key(ann, made[0])
        assert (await world.tenants.add_key(ann, wanted)).secret
        assert (await world.tenants.add_key(ADMIN, wanted)).secret


async def test_a_token_for_one_project_makes_none_for_others(world):
    await world.tenants.put_member(ADMIN, world.two, world.ann, ProjectRole.OWNER)
    wide = await world.token(world.ann)
    unbound = next(key for key in world.tenants.list_keys(ADMIN) if wide.startswith(key.prefix))
    ann = await world.actor(world.ann, project=world.one)
    for wanted in (
        KeyRequest(KeyKind.ACCESS_TOKEN, user=world.ann),
        KeyRequest(KeyKind.ACCESS_TOKEN, user=world.ann, project=world.two),
        KeyRequest(KeyKind.SERVICE, project=world.two),
    ):
        with pytest.raises((PermissionDenied, NotFound)):
            await world.tenants.add_key(ann, wanted)
    for change in (world.tenants.rotate_key(ann, unbound.id, 60), world.tenants.revoke_key(ann, unbound.id)):
        with pytest.raises(NotFound):
            await change
    assert [project.id for project in world.tenants.list_projects(ann)] == [world.one]
    own = KeyRequest(KeyKind.ACCESS_TOKEN, user=world.ann, project=world.one)
    assert (await world.tenants.add_key(ann, own)).key.project == world.one


async def test_a_key_that_ends_makes_none_that_lasts_longer(world):
    ann = await world.actor(world.ann, expires=2_000)
    (mine,) = world.tenants.list_keys(ann)
    for expires in (None, 2_001):
        with pytest.raises(PermissionDenied, match="ends at 2000"):
            await world.tenants.add_key(ann, KeyRequest(KeyKind.SERVICE, project=world.one, expires=expires))
    with pytest.raises(PermissionDenied, match="ends at 2000"):
        await world.tenants.change_key(ann, mine.id, lambda key: replace(key, expires=2**53))
    made = await world.tenants.add_key(ann, KeyRequest(KeyKind.SERVICE, project=world.one, expires=1_999))
    assert made.key.expires == 1_999


@pytest.mark.parametrize("end", ["revoked", "rotated", "expired"])
async def test_a_key_that_has_ended_stays_so(world, end):
    made = await world.tenants.add_key(ADMIN, KeyRequest(KeyKind.SERVICE, project=world.one, expires=1_010))
    if end == "revoked":
        await world.tenants.revoke_key(ADMIN, made.key.id)
    elif end == "rotated":
        await world.tenants.rotate_key(ADMIN, made.key.id, overlap=0)
    else:
        world.now = 1_010.0
    with pytest.raises(InvalidValue, match="has ended"):
        await world.tenants.change_key(ADMIN, made.key.id, lambda key: replace(key, expires=9_999))
    with pytest.raises(AuthenticationFailed):
        await world.ring.verify(made.secret, RequestedScope())


async def test_a_written_revocation_holds_without_the_database(world, monkeypatch):
    made = await world.tenants.add_key(ADMIN, KeyRequest(KeyKind.SERVICE, project=world.one))

    def gone(*_):
        raise StoreUnavailable("the database is gone")

    monkeypatch.setattr(SqlTenancy, "load_directory", gone)
    await world.tenants.revoke_key(ADMIN, made.key.id)
    with pytest.raises(AuthenticationFailed):
        await world.ring.verify(made.secret, RequestedScope())


async def test_what_is_learnt_of_changes_is_what_the_store_holds(world):
    made = await world.tenants.add_key(ADMIN, KeyRequest(KeyKind.SERVICE, project=world.one))
    await world.tenants.rotate_key(ADMIN, made.key.id, overlap=5)
    await world.tenants.change_key(
        ADMIN, made.key.id, lambda key: replace(key, note="old", grant=Grant(("a",)))
    )
    await world.tenants.change_project(ADMIN, world.two, "Too", None, True)
    await world.tenants.change_user(ADMIN, world.dan, lambda user: replace(user, name="Daniel"), True)
    await world.tenants.put_member(ADMIN, world.one, world.ben, ProjectRole.VIEWER)
    await world.tenants.remove_member(ADMIN, world.one, world.cleo)
    learnt = [
        set(each(ADMIN))
        for each in (world.tenants.list_projects, world.tenants.list_users, world.tenants.list_keys)
    ]
    members = set(world.tenants.list_members(ADMIN, world.one))
    await world.changes.load()
    kept = [
        set(each(ADMIN))
        for each in (world.tenants.list_projects, world.tenants.list_users, world.tenants.list_keys)
    ]
    assert learnt == kept
    assert members == set(world.tenants.list_members(ADMIN, world.one))


async def test_the_last_key_that_may_everything_cannot_be_ended(world):
    first = (await world.tenants.add_key(ADMIN, KeyRequest(KeyKind.ADMIN))).key
    confined = KeyRequest(KeyKind.ADMIN, grant=Grant(("a",)))
    await world.tenants.add_key(ADMIN, confined)
    await world.tenants.add_key(ADMIN, KeyRequest(KeyKind.ADMIN, expires=5_000))
    for change in (
        world.tenants.revoke_key(ADMIN, first.id),
        world.tenants.change_key(ADMIN, first.id, lambda key: replace(key, grant=Grant((), None))),
        world.tenants.change_key(ADMIN, first.id, lambda key: replace(key, expires=9_999)),
    ):
        with pytest.raises(InvalidValue, match="the operator's last key"):
            await change
    successor = (await world.tenants.rotate_key(ADMIN, first.id, overlap=0)).key
    with pytest.raises(InvalidValue, match="the operator's last key"):
        await world.tenants.revoke_key(ADMIN, successor.id)
    await world.tenants.add_key(ADMIN, KeyRequest(KeyKind.ADMIN))
    await world.tenants.revoke_key(ADMIN, successor.id)


async def test_a_service_key_manages_nothing(world):
    actor = Actor(ActorKind.SERVICE_KEY, "key", world.one, rights=SERVICE_RIGHTS)
    assert world.tenants.list_keys(actor) == []
    with pytest.raises(PermissionDenied):
        await world.tenants.add_key(actor, KeyRequest(KeyKind.SERVICE, project=world.one))


async def test_an_owner_in_one_project_is_none_in_another(world):
    await world.tenants.put_member(ADMIN, world.two, world.ann, ProjectRole.MEMBER)
    token = await world.token(world.ann)
    ann = await world.ring.verify(token, RequestedScope(project=world.two))
    with pytest.raises(PermissionDenied):
        await world.tenants.add_key(ann, KeyRequest(KeyKind.SERVICE, project=world.two))


async def test_a_disabled_user_and_an_archived_project_end_their_keys(world):
    token = await world.token(world.ann)
    key = (await world.tenants.add_key(ADMIN, KeyRequest(KeyKind.SERVICE, project=world.two))).secret
    await world.tenants.change_user(ADMIN, world.ann, lambda user: user, True)
    await world.tenants.change_project(ADMIN, world.two, None, None, True)
    for secret in (token, key):
        with pytest.raises(AuthenticationFailed):
            await world.ring.verify(secret, RequestedScope())
    await world.tenants.change_user(ADMIN, world.ann, lambda user: user, False)
    await world.ring.verify(token, RequestedScope())
    with pytest.raises(InvalidValue, match="default cannot be archived"):
        await world.tenants.change_project(ADMIN, "default", None, None, True)


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (KeyRequest(KeyKind.SERVICE), MissingParameter),
        (KeyRequest(KeyKind.SERVICE, project="default", user="u"), InvalidValue),
        (KeyRequest(KeyKind.ADMIN, project="default"), InvalidValue),
        (KeyRequest(KeyKind.ACCESS_TOKEN), MissingParameter),
        (KeyRequest(KeyKind.ACCESS_TOKEN, user="nobody"), NotFound),
        (KeyRequest(KeyKind.SERVICE, project="none"), NotFound),
        (KeyRequest(KeyKind.SERVICE, project="default", expires=999), InvalidValue),
    ],
)
async def test_a_key_that_makes_no_sense_is_refused(world, wanted, error):
    with pytest.raises(error):
        await world.tenants.add_key(ADMIN, wanted)


async def test_a_change_whose_caller_left_holds_all_the_same(world, monkeypatch):
    secret = await world.token(world.ann)
    key = next(key for key in world.tenants.list_keys(ADMIN) if secret.startswith(key.prefix))
    began, may_go_on, change = threading.Event(), threading.Event(), SqlTenancy.change_key

    def slowly(*arguments):
        began.set()
        may_go_on.wait(10)
        change(*arguments)

    monkeypatch.setattr(SqlTenancy, "change_key", slowly)
    async with anyio.create_task_group() as group:
        group.start_soon(world.tenants.revoke_key, ADMIN, key.id)
        await anyio.to_thread.run_sync(began.wait)
        group.cancel_scope.cancel()
    may_go_on.set()
    await world.tenants.list_audit(ADMIN, 1, None, AuditSelection())  # its turn comes after the change
    with pytest.raises(AuthenticationFailed):
        await world.ring.verify(secret, RequestedScope())


async def test_changes_at_once_are_made_one_after_the_other(world):
    failed = []

    async def add():
        try:
            await world.tenants.add_project(ADMIN, "Same", "")
        except Conflict:
            failed.append(True)

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(add)
    assert len(failed) == 7
