"""A server whose users sign on elsewhere: a real issuer on this machine, over HTTP."""

import json
import shlex
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2
import pytest

from antiphon.auth.base import REFUSAL
from tests.e2e.refused_starts import read_refusal, refused
from tests.e2e.vendor_model import VENDOR_MODEL
from tests.support.commands import run_command
from tests.support.docs import ROOT, list_code_blocks
from tests.support.oidc_issuer import Issuer, SigningKey, listening
from tests.support.server import Server, serving
from tests.support.vendors.scripted_upstream import serve_upstream
from tests.support.waiting import wait_until

CHAT = {"model": "cantor", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


PAGE = ROOT / "docs" / "single-sign-on.md"


@dataclass(frozen=True)
class Place:
    """The server that the page leads to."""

    server: Server
    issuer: Issuer
    admin: dict[str, str]
    """The operator's header."""
    research: str
    """The id of the project that the page creates."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Follows the page: its first settings file, its commands, then its second file."""
    folder = tmp_path_factory.mktemp("sign-on")
    home, file = folder / "home", folder / "antiphon.toml"
    first, second = list_code_blocks(PAGE, "toml")
    (check,), (create,) = (
        [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith(words)]
        for words in ("antiphon doctor", "antiphon projects create")
    )
    env = {"ANTIPHON_HOME": str(home), "ANTIPHON_KEYS": "true"}
    with serve_upstream() as upstream, listening(Issuer()) as issuer:

        def run(command, *more):
            words = [*shlex.split(command)[1:], *more]
            return run_command(*words, cwd=folder, env=env)

        def write(block):
            block = block.replace("https://login.example.org/realms/main", issuer.address)
            file.write_text(block + VENDOR_MODEL.format(url=upstream.url))

        write(second)
        ended = run("antiphon serve --port 0 --log-level error", "--config", str(file))
        assert "unknown project 'Research'" in read_refusal(ended)
        write(first)
        with serving("--config", str(file), env=env) as server:
            checked = json.loads(run(check, "--config", str(file), "--json", "--port", "0").stdout)
            rows = {row["id"]: row["said"] for row in checked["findings"]}
            assert rows["sign-on"] == f"{issuer.address} answers, and has keys for ES256"
            made = run(create, "--url", server.url)
            assert made.returncode == 0, made.stderr
            key = {"x-api-key": issuer.token(time.time())}
            assert httpx2.get(server.url + "/v1/models", headers=key).status_code == 401
            wait_until(lambda: "oidc.add_users is off" in str(server.records("refused")), what="the cause")
        write(second)
        with serving("--config", str(file), env=env) as server:
            admin = {"authorization": "Bearer " + (home / "admin.key").read_text().strip()}
            projects = httpx2.get(server.url + "/admin/v1/projects", headers=admin).json()["data"]
            (research,) = (each["id"] for each in projects if each["name"] == "Research")
            issuer.fetched_urls.clear()
            yield Place(server, issuer, admin, research)


def is_logged(server, id_):
    return id_ in str(server.records("refused"))


def test_a_token_of_the_issuer_calls_wherever_a_key_does(place):
    server, issuer, admin = place.server, place.issuer, place.admin
    with server.client() as client:
        token = issuer.token(time.time(), groups=["ml-team"])
        for headers in (
            {"authorization": f"Bearer {token}"},
            {"x-api-key": token},
            {"api-key": token},
        ):
            assert client.post("/v1/chat/completions", json=CHAT, headers=headers).status_code == 200
        users = client.get("/admin/v1/users", headers=admin).json()["data"]
        (user,) = (each for each in users if each["email"] == "ann@example.org")
        assert user["name"] == "Ann"
        said = client.get("/admin/v1/projects", headers={"x-api-key": token}).json()["data"]
        assert [project["id"] for project in said] == [place.research]
        assert client.get("/admin/v1/audit", headers={"x-api-key": token}).status_code == 403
        assert client.get("/metrics", headers={"x-api-key": token}).status_code == 403
        guest = {"x-api-key": issuer.token(time.time(), email="guest@example.org", groups=["guests"])}
        assert client.get("/v1/models", headers=guest).status_code == 200
        assert client.post("/v1/chat/completions", json=CHAT, headers=guest).status_code == 403
        stranger = SigningKey("one")
        bad: dict[str, dict[str, Any]] = {
            "the token has another audience than oidc.audience: 'others'": {"aud": "others"},
            "the token has expired": {"now": time.time() - 7200},
            "no key of the issuer made the token's signature": {"key": stranger},
            "the issuer has no key with the id in the token's header": {"headers": {"kid": "two"}},
            "the token has no email address in the claim email": {"email": None},
            "the token's email address is not verified: email_verified is not true": {
                "email_verified": "False"
            },
        }
        for cause, changes in bad.items():
            wrong = issuer.token(changes.pop("now", time.time()), **changes)
            answer = client.post("/v1/chat/completions", json=CHAT, headers={"x-api-key": wrong})
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
            assert answer.json()["error"]["message"] == REFUSAL
            id_ = answer.headers["x-request-id"]
            wait_until(partial(is_logged, server, id_), what="the log has it")
            (said,) = (each for each in server.records("refused") if each["request_id"] == id_)
            assert said["cause"] == cause
        no = {"x-api-key": issuer.token(time.time(), email_verified="no")}
        assert client.get("/v1/models", headers=no).status_code == 401
        kelvin = issuer.token(time.time(), email="\u212aarl@example.org", groups=["ml-team"])
        client.post("/admin/v1/users", json={"name": "K", "email": "Karl@Example.org"}, headers=admin)
        assert client.get("/v1/models", headers={"x-api-key": kelvin}).status_code == 200
        emails = [each["email"] for each in client.get("/admin/v1/users", headers=admin).json()["data"]]
        assert emails.count("karl@example.org") == emails.count("\u212aarl@example.org") == 1
        client.patch(f"/admin/v1/users/{user['id']}", json={"disabled": True}, headers=admin)
        assert client.get("/v1/models", headers={"x-api-key": token}).status_code == 401
        said = "\n".join(server.lines)
    assert token not in said
    assert token.rpartition(".")[2] not in said
    assert set(issuer.fetched_urls) == {"/.well-known/openid-configuration", "/keys"}


def test_roles_follow_the_groups_of_a_project_by_its_name(place):
    with place.server.client() as client:
        for groups, role in ((["ml-leads", "ml-team"], "owner"), (["ml-team"], "member"), ([], None)):
            token = place.issuer.token(time.time(), email="leah@example.org", groups=groups)
            status = client.get("/v1/models", headers={"x-api-key": token}).status_code
            users = client.get("/admin/v1/users", headers=place.admin).json()["data"]
            (user,) = (each["id"] for each in users if each["email"] == "leah@example.org")
            members = client.get(f"/admin/v1/projects/{place.research}/members", headers=place.admin)
            found = {each["role"] for each in members.json()["data"] if each["user"] == user}
            assert (status, found) == ((200, {role}) if role else (403, set())), groups


@pytest.fixture
def env(tmp_path):
    return {
        "ANTIPHON_KEYS": "true",
        "ANTIPHON_HOME": str(tmp_path / "home"),
        "ANTIPHON_OIDC_ISSUER": "http://127.0.0.1:9",
        "ANTIPHON_OIDC_AUDIENCE": "antiphon",
        "ANTIPHON_OIDC_GROUPS": "ml-team=default:member",
    }


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"ANTIPHON_OIDC_AUDIENCE": ""}, "oidc.audience is missing"),
        ({"ANTIPHON_KEYS": "false"}, "oidc.issuer needs keys.enabled"),
        ({"ANTIPHON_OIDC_ISSUER": "http://login.example.org"}, "oidc.issuer must be an https address"),
        (
            {"ANTIPHON_OIDC_KEYS_URL": "http://login.example.org/keys"},
            "oidc.keys_url must be an https address",
        ),
        ({"ANTIPHON_OIDC_ALGORITHMS": "HS256"}, "HS256"),
        ({"ANTIPHON_OIDC_GROUPS": "ml-team=default:chief"}, "ANTIPHON_OIDC_GROUPS"),
    ],
    ids=lambda said: next(iter(said)) if isinstance(said, dict) else "refused",
)
def test_unsafe_or_broken_single_sign_on_is_refused_at_start(env, changed, sentence):
    assert sentence in refused(env=env | changed)
