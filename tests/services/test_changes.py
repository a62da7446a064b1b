"""Changes by several processes of one database: each learns what the others do, and what was checked still
holds when it is written."""

import subprocess
import sys

import pytest

from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.limits import Limit, Measure, Subject, Window
from antiphon.domain.prices import Price
from antiphon.domain.tenancy import KeyKind, Project
from antiphon.domain.values import replace
from antiphon.errors import Conflict, InvalidValue, NotFound
from antiphon.services.changes import MAX_TRIES
from antiphon.services.policy import KeyRequest, LimitRequest
from antiphon.store.base import ChangeAuthor
from tests.support.tenancy import ADMIN, node
from tests.support.waiting import PATIENCE, await_until

LATEST_S = 10.0
"""Within which another server must know a change; on a machine of its own it takes a fifth of a second."""
BY = ChangeAuthor("somebody", 1)
LIMIT = Limit("limit-1", Subject.PROJECT, "default", Measure.REQUESTS, 600, 5, Window.MINUTE)
PRICE = Price("price-1", "*", "USD", 0, 5, 5)


@pytest.fixture
async def pair(url):
    """Two servers of one database that hear of each other."""
    with node(url) as one, node(url) as two:
        await one.changes.load()
        await two.changes.load()
        yield one, two


@pytest.fixture
async def deaf(url):
    """Two servers of one database, of which neither hears what the other does."""
    with node(url, feed=False) as one, node(url, feed=False) as two:
        await one.changes.load()
        await two.changes.load()
        yield one, two


async def test_changes_of_a_key_on_one_server_reach_the_other(pair):
    one, two = pair
    made = await one.tenants.add_key(ADMIN, KeyRequest(KeyKind.SERVICE, project="default"))
    await await_until(lambda: two.accepts(made.secret), LATEST_S, "made")
    await one.tenants.change_key(ADMIN, made.key.id, lambda key: replace(key, note="new note"))

    async def changed():
        return two.tenants.get_key(ADMIN, made.key.id).note == "new note"

    await await_until(changed, LATEST_S, "changed")
    await one.tenants.revoke_key(ADMIN, made.key.id)

    async def revoked():
        return not await two.accepts(made.secret)

    await await_until(revoked, LATEST_S, "revoked")


async def test_a_limit_and_a_price_of_one_server_hold_on_the_other(pair):
    one, two = pair
    await one.add_limit(LIMIT)

    async def limited():
        return two.book.rules.find_limits(ADMIN, "cantor") == (LIMIT,)

    await await_until(limited, LATEST_S, "limit")
    one.rules.add_price(PRICE, BY)

    async def priced():
        return two.book.rules.list_prices("cantor") == (PRICE,) and one.changes.directory.prices == (PRICE,)

    await await_until(priced, LATEST_S, "price")


async def test_changes_by_others_are_known_before_a_change_is_checked(deaf):
    one, two = deaf
    user = await one.tenants.add_user(ADMIN, "Ann", None, "")
    made = await two.tenants.add_key(ADMIN, KeyRequest(KeyKind.ACCESS_TOKEN, user=user.id))
    assert two.changes.directory.users == (user,)
    assert (await one.tenants.revoke_key(ADMIN, made.key.id)).revoked is not None
    with pytest.raises(InvalidValue, match="has ended"):
        await two.tenants.rotate_key(ADMIN, made.key.id, 0)


async def test_a_change_is_checked_again_if_another_server_was_faster(deaf):
    one, two = deaf
    seen = []

    def changed():
        seen.append(len(one.changes.directory.projects))
        if len(seen) == 1:  # after the check, before the write
            two.tenancy.add_project(Project("project-1", "One", 5), BY)
        project = Project("project-2", "Two", 5)
        revision = one.tenancy.add_project(project, one.changes.attribute_to(ADMIN))
        one.changes.update_directory(revision, projects=(*one.changes.directory.projects, project))

    await one.changes.apply(changed)
    assert seen == [1, 2]
    assert one.changes.directory == one.tenancy.load_directory()


async def test_a_change_that_always_loses_the_race_is_a_conflict(deaf):
    one, two = deaf
    tries: list[int] = []

    def changed():
        tries.append(two.tenancy.add_project(Project(f"p-{len(tries)}", f"{len(tries)}", 5), BY))
        one.tenancy.add_project(Project("mine", "mine", 5), one.changes.attribute_to(ADMIN))

    with pytest.raises(Conflict, match="try again"):
        await one.changes.apply(changed)
    assert len(tries) == MAX_TRIES
    assert "mine" not in {project.id for project in two.tenancy.load_directory().projects}


async def test_what_is_learnt_is_what_the_store_holds(deaf):
    one, _ = deaf
    project = await one.tenants.add_project(ADMIN, "One", "")
    await one.tenants.change_project(ADMIN, project.id, "Two", None, None)
    user = await one.tenants.add_user(ADMIN, "Ann", "ann@example.com", "")
    await one.tenants.put_member(ADMIN, project.id, user.id, "owner")
    key = (await one.tenants.add_key(ADMIN, KeyRequest(KeyKind.SERVICE, project=project.id))).key
    await one.add_limit(replace(LIMIT, subject=Subject.KEY, target=key.id))
    await one.tenants.rotate_key(ADMIN, key.id, 60)
    await one.tenants.revoke_key(ADMIN, key.id)
    await one.tenants.change_user(ADMIN, user.id, lambda user: replace(user, name="Anna"), True)
    assert one.changes.directory == one.tenancy.load_directory()


async def test_limits_that_come_with_a_key_are_learnt_with_it(pair):
    one, two = pair
    limit = LimitRequest(Subject.KEY, "", Measure.REQUESTS, 5, Window.MINUTE)
    wanted = KeyRequest(KeyKind.SERVICE, project="default", limits=(limit,))
    made = await one.tenants.add_key(ADMIN, wanted)
    await await_until(lambda: two.accepts(made.secret), LATEST_S, "made")
    of = Actor(ActorKind.SERVICE_KEY, made.key.id, "default")
    for node_ in (one, two):
        assert node_.book.rules.find_limits(of, "m") == made.limits != ()
    assert one.changes.directory == one.tenancy.load_directory()


async def test_a_key_and_its_successor_share_limits_on_every_server(pair):
    one, two = pair
    key = (await one.tenants.add_key(ADMIN, KeyRequest(KeyKind.SERVICE, project="default"))).key
    await one.add_limit(replace(LIMIT, subject=Subject.KEY, target=key.id))
    await one.add_limit(replace(LIMIT, id="limit-2", note="of the project"))
    made = await one.tenants.rotate_key(ADMIN, key.id, 60)
    await await_until(lambda: two.accepts(made.secret), LATEST_S, "made")
    for node_ in (one, two):
        for id_ in (key.id, made.key.id):
            of = Actor(ActorKind.SERVICE_KEY, id_, "default")
            limits = [(limit.subject, limit.id) for limit in node_.book.rules.find_limits(of, "m")]
            assert limits == [(Subject.KEY, LIMIT.id), (Subject.PROJECT, "limit-2")]
        assert node_.changes.directory == one.tenancy.load_directory()


async def test_a_change_that_fails_leaves_what_was_known(deaf):
    one, _ = deaf
    before = one.changes.directory
    with pytest.raises(NotFound):
        await one.tenants.change_user(ADMIN, "nobody", lambda user: user)
    assert one.changes.directory is before


ROUNDS = 5


class Racer:
    """Another process that ends keys; see tests/services/racer.py."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "tests.services.racer", url]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, id_: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{id_}\n")
        self.process.stdin.flush()

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.communicate(timeout=PATIENCE)


@pytest.fixture
def racer(url):
    made = Racer(url)
    yield made
    made.end()


async def test_two_processes_cannot_end_both_last_operators_keys(deaf, racer):
    """Each key may be ended while the other is there; both at once would lock everybody out."""
    one, two = deaf
    assert racer.said() == "ready"
    for _ in range(ROUNDS):
        ids = [(await one.tenants.add_key(ADMIN, KeyRequest(KeyKind.ADMIN))).key.id for _ in range(2)]
        for key in standing(one):
            if key not in ids:
                await one.tenants.revoke_key(ADMIN, key)
        racer.tell(ids[0])
        try:
            await two.tenants.revoke_key(ADMIN, ids[1])
            said = "revoked"
        except InvalidValue:
            said = "InvalidValue"
        assert sorted((said, racer.said())) == ["InvalidValue", "revoked"]
        assert len(standing(one)) == 1


def standing(node):
    """The ids of the keys that have not ended, as the store says."""
    return [kept.key.id for kept in node.tenancy.load_directory().keys if kept.key.revoked is None]
