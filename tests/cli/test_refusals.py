"""`antiphon doctor` and `antiphon config` know what `antiphon serve` refuses, and doctor whether what it
needs elsewhere answers."""

import itertools
import json
import socket
import sys
import time
from pathlib import Path

import pytest
import redis

from antiphon.cli.doctor.checks import REMOTE_TIMEOUT_S, check_tenancy
from antiphon.cli.doctor.findings import Finding, FindingSeverity, report_ok
from antiphon.cli.doctor.report import run_checks
from antiphon.cli.serve_options import ServeOptions
from antiphon.settings.schema import Settings
from antiphon.settings.tenancy import KeysSettings, LimitsSettings, OidcSettings
from tests.cli.conftest import Run
from tests.support.oidc_issuer import Issuer, listening
from tests.support.redis_server import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.redis_server import Server

SECRET = "canary-hunter2"

UNSET = {
    "limits without keys": (
        {"ANTIPHON_LIMITS_URL": "redis://127.0.0.1:1/0"}, "limits have no effect", "ANTIPHON_KEYS",
    ),
    "a store without keys": ({"ANTIPHON_STORE": "sqlite:///a.db"}, "keys have no effect", "ANTIPHON_STORE"),
    "a ledger without keys": ({"ANTIPHON_SPOOL_BYTES": "9000000"}, "ledger have no effect", "ANTIPHON_KEYS"),
    "too small a spool": (
        {"ANTIPHON_KEYS": "true", "ANTIPHON_WORKERS": "32"}, "need a spool of 134,217,728 bytes", "Raise it",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("env", "said", "remedy"), UNSET.values(), ids=UNSET)
def test_what_serve_refuses_is_a_finding_and_told_by_config(
    antiphon: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    env: dict[str, str],
    said: str,
    remedy: str,
) -> None:
    env = {"ANTIPHON_HOME": str(tmp_path / "home")} | env
    refused = antiphon("serve", "--port", "0", env=env)
    assert refused.returncode == 1 and said in refused.stderr
    shown = antiphon("config", env=env)
    assert shown.returncode == 1 and said in shown.stderr and "server.port" in shown.stdout
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    _, broken = itertools.islice(run_checks(ServeOptions({"server": {"port": 0}}), load=False), 2)
    assert (broken.id, broken.severity) == ("settings-refused", FindingSeverity.BROKEN)
    assert said in broken.message and remedy in broken.remedy


def test_workers_that_are_said_as_a_flag_are_looked_at(antiphon: Run, tmp_path: Path) -> None:
    env = {"ANTIPHON_HOME": str(tmp_path / "home"), "ANTIPHON_KEYS": "true"}
    done = antiphon("doctor", "--port", "0", "--workers", "32", "--exact", "--json", env=env)
    (broken,) = [each for each in json.loads(done.stdout)["findings"] if each["standing"] == "broken"]
    assert (done.returncode, broken["id"]) == (1, "settings-refused")


# --- what answers elsewhere ----------------------------------------------------------------------------


def findings(home: Path, **said: object) -> dict[str, Finding]:
    keys = said.pop("keys", KeysSettings(enabled=True))
    settings = Settings(keys=keys, **said)  # type: ignore[arg-type]
    return {each.id: each for each in check_tenancy(settings, {"ANTIPHON_HOME": str(home)}, home)}


def limits(home: Path, url: str, unavailable: str = "closed") -> Finding:
    said = LimitsSettings(url=url, unavailable=unavailable)  # type: ignore[arg-type]
    (finding,) = [each for name, each in findings(home, limits=said).items() if name.startswith("limits")]
    return finding


def test_a_redis_that_answers_is_well(tmp_path: Path, redis_server: Server) -> None:
    found = limits(tmp_path, redis_server.url)
    assert found.severity is FindingSeverity.OK and f"answers at {redis_server.url}" in found.message


def test_an_unreachable_redis_is_found_without_its_password(tmp_path: Path) -> None:
    found = limits(tmp_path, f"redis://name:{SECRET}@127.0.0.1:1/0")
    assert (found.id, found.severity) == ("limits-unusable", FindingSeverity.BROKEN)
    assert "redis://127.0.0.1:1/0 cannot be used" in found.message and SECRET not in found.message
    assert "ANTIPHON_LIMITS_URL" in found.remedy
    assert limits(tmp_path, "redis://127.0.0.1:1/0", "open").severity is FindingSeverity.ADVICE
    wrong = limits(tmp_path, f"http://{SECRET}")
    assert "is no address of Redis" in wrong.message and SECRET not in wrong.message
    assert wrong.remedy.startswith("Use redis://")


def test_what_is_wrong_inside_a_redis_is_told(tmp_path: Path, own_redis: Server) -> None:
    with redis.Redis.from_url(own_redis.url) as inside:
        inside.replicaof("127.0.0.1", "1")
        assert "is a replica" in limits(tmp_path, own_redis.url).message
        inside.config_set("requirepass", SECRET)
    refused = limits(tmp_path, own_redis.url)
    assert refused.severity is FindingSeverity.BROKEN and "refuses the user or password" in refused.message
    right = own_redis.url.replace("unix://", f"unix://:{SECRET}@")
    assert SECRET not in limits(tmp_path, right).message


def test_a_silent_listener_is_left_after_two_seconds(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        found = limits(tmp_path, f"redis://127.0.0.1:{port}/0")
        asked = time.monotonic() - began
        assert found.message.endswith(f"does not answer within {REMOTE_TIMEOUT_S} seconds")
        store = f"postgresql://a:{SECRET}@127.0.0.1:{port}/none?connect_timeout=30"
        found = findings(tmp_path, keys=KeysSettings(enabled=True, store=store))["store-unusable"]
        assert found.severity is FindingSeverity.BROKEN and SECRET not in found.message
        assert asked < 20 and time.monotonic() - began < 28, "not the time that the address says"


def test_an_issuer_is_asked_for_its_configuration_and_keys(tmp_path: Path) -> None:
    def ask(**said: object) -> Finding:
        sso = OidcSettings(**{"issuer": issuer.address, "audience": "antiphon"} | said)
        found = findings(tmp_path, oidc=sso)
        return next(each for id_, each in found.items() if id_ in ("sign-on", "issuer-unusable"))

    with listening(Issuer()) as issuer:
        assert ask() == report_ok("sign-on", f"{issuer.address} answers, and has keys for ES256")
        slash = ask(issuer=issuer.address + "/")
        assert slash.id == "issuer-unusable" and f"belongs to the issuer '{issuer.address}'" in slash.message
        other = ask(algorithms=("RS256",))
        assert "has no key for oidc.algorithms (RS256): its keys are for ES256" in other.message
        assert "404" in ask(keys_url=issuer.address + "/none").message
    gone = ask()
    assert gone.severity is FindingSeverity.BROKEN and "ConnectError" in gone.message
    assert "docs/single-sign-on.md" in gone.remedy


def test_an_unknown_project_of_a_group_is_found(tmp_path: Path) -> None:
    sso = OidcSettings(issuer="http://127.0.0.1:1", audience="a", groups=("ml=defualt:member",))
    found = findings(tmp_path, oidc=sso)["sign-on-project-unknown"]
    assert "'defualt'" in found.message and found.remedy == "Did you mean default?"
    known = OidcSettings(issuer="http://127.0.0.1:1", audience="a", groups=("ml=default:member",))
    assert "sign-on-project-unknown" not in findings(tmp_path, oidc=known)


def test_missing_libraries_are_named_with_their_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sso = OidcSettings(issuer="http://127.0.0.1:1", audience="antiphon")
    assert "sign-on-unusable" not in findings(tmp_path, oidc=sso)
    for name in (
        "jwt",
        "redis",
        "redis.asyncio",
        "antiphon.limits.redis",
        "antiphon.limits.redis",
    ):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "jwt", None)
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    assert "EXTRAS=oidc" in findings(tmp_path, oidc=sso)["sign-on-unusable"].remedy
    missing = limits(tmp_path, "redis://127.0.0.1:1/0")
    assert missing.remedy.startswith("Install it: make serve EXTRAS=redis")
