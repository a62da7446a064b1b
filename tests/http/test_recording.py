"""Who may have a project's requests kept word by word, and read them."""

import jsonschema
import pytest

from antiphon.domain.tenancy import KeyKind, ProjectRole, RecordedRequest
from antiphon.errors import NotFound
from tests.support.kept_responses import make_actor, make_response
from tests.support.keyed_server import OPERATOR, ROOT, keyed

PATH = f"{ROOT}/projects/default/recording"
KEPT = {"days": 30, "redact": ["email", "key", "email"]}


@pytest.fixture
async def server(tmp_path):
    async with keyed(tmp_path) as running:
        yield running


def kept(number, project="default"):
    return RecordedRequest(f"r{number}", project, 1_000 * number, 2**40, '{"n": 1}', "{}")


def keep(server, *records):
    server.recordings._records.add(list(records))


async def test_owners_and_the_operator_turn_it_on_and_off(server):
    owner = (await server.person(ProjectRole.OWNER))[1]
    for token in (owner, server.admin):
        said = (await server.asked(token, PATH, KEPT, method="PUT")).json()
        assert said["recording"] == {"days": 30, "redact": ["email", "key"]}
        assert (await server.asked(token, f"{ROOT}/projects/default")).json()["recording"]["days"] == 30
        assert (await server.asked(token, PATH, method="DELETE")).json()["recording"] is None
    audit = (await server.asked(server.admin, f"{ROOT}/audit?target=default")).json()["data"]
    assert len([entry for entry in audit if "days" in str(entry["detail"])]) == 2
    for role in (ProjectRole.MEMBER, ProjectRole.VIEWER):
        token = (await server.person(role))[1]
        for method, path in (("PUT", PATH), ("DELETE", PATH), ("GET", f"{ROOT}/requests?project=default")):
            answer = await server.asked(token, path, KEPT if method == "PUT" else None, method=method)
            assert (answer.status, answer.error["code"]) == (403, "permission_denied")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"days": 0},
        {"days": 4000},
        {"days": "30"},
        {"days": 1, "redact": ["names"]},
        {"days": 1, "project": "x"},
    ],
    ids=str,
)
async def test_what_makes_no_sense_is_refused(server, body):
    assert (await server.asked(server.admin, PATH, body, method="PUT")).status == 400
    assert (await server.asked(server.admin, f"{ROOT}/projects/default")).json()["recording"] is None


async def test_another_projects_requests_are_not_there(server):
    other = await server.tenants.add_project(OPERATOR, "Other", "")
    keep(server, kept(1), kept(2, other.id))
    owner = (await server.person(ProjectRole.OWNER))[1]
    assert (await server.asked(owner, f"{ROOT}/requests/r1")).status == 200
    assert (await server.asked(owner, f"{ROOT}/requests/r2")).status == 404
    assert (await server.asked(owner, f"{ROOT}/requests?project={other.id}")).status == 404
    assert (await server.asked(owner, f"{ROOT}/requests?project={other.id}", method="DELETE")).status == 404
    assert (await server.asked(owner, f"{ROOT}/requests?project=default&after=r2")).status == 404
    assert (await server.asked(server.admin, f"{ROOT}/requests/r2")).status == 200
    service = await server.token(KeyKind.SERVICE, project="default")
    assert (await server.asked(service, f"{ROOT}/requests/r1")).status == 403


async def test_pages_and_their_removal(server):
    keep(server, *(kept(number) for number in range(5)))
    ids, after = [], ""
    document = (await server.asked(server.admin, "/openapi.json")).json()
    shape = document["paths"][f"{ROOT}/requests"]["get"]["responses"]["200"]["content"]["application/json"]
    while after is not None:
        page = (await server.asked(server.admin, f"{ROOT}/requests?project=default&limit=2{after}")).json()
        jsonschema.validate(page, {**shape["schema"], "components": document["components"]})
        ids += [each["id"] for each in page["data"]]
        after = page["next"] and f"&after={page['next']}"
    assert ids == ["r4", "r3", "r2", "r1", "r0"]
    for query in ("", "?project=default&limit=101", "?project=default&limit=0", "?project=default&x=1"):
        assert (await server.asked(server.admin, f"{ROOT}/requests{query}")).status == 400
    gone = await server.asked(server.admin, f"{ROOT}/requests?project=default", method="DELETE")
    assert gone.json()["removed"] == 5
    assert (await server.asked(server.admin, f"{ROOT}/requests/r1")).status == 404


async def test_an_erasure_is_audited_and_covers_late_recordings(server):
    keep(server, kept(1))
    began = int(server.edge.clock.wall())
    response, actor = make_response("a", created=began), make_actor("default")
    assert await server.edge.responses.save(response, actor)
    owner, viewer = [(await server.person(role))[1] for role in (ProjectRole.OWNER, ProjectRole.VIEWER)]
    everything = f"{ROOT}/requests?project=default"
    for token, status in ((owner, 200), (viewer, 403), (server.admin, 200)):
        assert (await server.asked(token, everything, method="DELETE")).status == status
    keys = (await server.asked(server.admin, f"{ROOT}/keys")).json()["data"]
    ids = [
        next(key["id"] for key in keys if token.startswith(key["prefix"])) for token in (owner, server.admin)
    ]
    audit = (await server.asked(server.admin, f"{ROOT}/audit?target=default")).json()["data"]
    erased = [entry for entry in audit if entry["action"] == "project.erase_requests"]
    assert [(entry["actor"], entry["detail"]) for entry in erased] == [
        (ids[1], {"removed": 0, "responses": 0}),
        (ids[0], {"removed": 1, "responses": 1}),
    ]
    keep(server, kept(2))
    assert (await server.asked(server.admin, everything)).json()["data"] == []
    with pytest.raises(NotFound):
        await server.edge.responses.load("resp_a", actor)
    assert not await server.edge.responses.save(make_response("late", created=began), actor)


async def test_every_reading_is_audited_and_refusals_are_not(server):
    keep(server, *(kept(number) for number in range(3)))
    owner, viewer = [(await server.person(role))[1] for role in (ProjectRole.OWNER, ProjectRole.VIEWER)]
    everything = f"{ROOT}/requests?project=default&limit=2"
    assert (await server.asked(owner, everything)).json()["next"] == "r1"
    assert (await server.asked(owner, f"{everything}&after=r1")).status == 200
    assert (await server.asked(server.admin, f"{ROOT}/requests/r2")).status == 200
    assert (await server.asked(viewer, everything)).status == 403
    assert (await server.asked(viewer, f"{ROOT}/requests/r2")).status == 404
    audit = (await server.asked(server.admin, f"{ROOT}/audit?target=default")).json()["data"]
    read = [entry for entry in audit if entry["action"] == "project.read_requests"]
    assert [entry["detail"] for entry in read] == [{"request": "r2"}, {"requests": 1}, {"requests": 2}]
    assert len({entry["actor"] for entry in read}) == 2
    places = [entry["detail"].get("request") for entry in audit]
    assert "r1" not in places, "a place to go on from is not read"
