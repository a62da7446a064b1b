"""A server whose users sign on elsewhere: a real issuer on this machine, over HTTP."""

import json
import threading
import time
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from antiphon.auth.base import REFUSAL
from tests.e2e.test_refused_starts import refused
from tests.support.oidc_issuer import Issuer, SigningKey
from tests.support.server import serving
from tests.support.waiting import wait_until

CHAT = {"model": "cantor", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@contextmanager
def listening(issuer):
    """Answers for the issuer on a free port of this machine."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self):
            issuer.fetched_urls.append(self.path)
            found = issuer.documents().get(issuer.address + self.path)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *said):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    issuer.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def issuer():
    with listening(Issuer()) as issuer:
        yield issuer


@pytest.fixture
def env(tmp_path, issuer):
    return {
        "ANTIPHON_KEYS": "true",
        "ANTIPHON_HOME": str(tmp_path / "home"),
        "ANTIPHON_OIDC_ISSUER": issuer.address,
        "ANTIPHON_OIDC_AUDIENCE": "antiphon",
        "ANTIPHON_OIDC_ADD_USERS": "true",
        "ANTIPHON_OIDC_GROUPS": "ml-team=default:member,guests=default:viewer",
    }


def is_logged(server, id_):
    return id_ in str(server.records("refused"))


def test_a_token_of_the_issuer_calls_wherever_a_key_does(env, issuer, tmp_path):
    with serving(env=env) as server, server.client() as client:
        admin = {"authorization": "Bearer " + (tmp_path / "home" / "admin.key").read_text().strip()}
        token = issuer.token(time.time(), groups=["ml-team"])
        for headers in (
            {"authorization": f"Bearer {token}"},
            {"x-api-key": token},
            {"api-key": token},
        ):
            assert client.post("/v1/chat/completions", json=CHAT, headers=headers).status_code == 200
        user = client.get("/admin/v1/users", headers=admin).json()["data"][0]
        assert (user["name"], user["email"]) == ("Ann", "ann@example.org")
        said = client.get("/admin/v1/projects", headers={"x-api-key": token}).json()["data"]
        assert [project["id"] for project in said] == ["default"]
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
    assert issuer.fetched_urls == ["/.well-known/openid-configuration", "/keys"]


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
