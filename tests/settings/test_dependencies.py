"""Settings that act only beside other settings are refused without them."""

import pytest

from antiphon.errors import SettingsError
from antiphon.settings.loading import DEPENDENCIES, load_settings
from antiphon.settings.schema import Settings

KEYS = {"ANTIPHON_KEYS": "true"}
REPOSITORIES = {"ANTIPHON_LORA_REPOSITORIES": "ada/*"}
PROJECTS = KEYS | REPOSITORIES | {"ANTIPHON_LORA_PROJECT_ADAPTERS": "2"}
ISSUER = {"ANTIPHON_OIDC_ISSUER": "https://login.example.org", "ANTIPHON_OIDC_AUDIENCE": "antiphon"}
CONSOLE = {"ANTIPHON_OIDC_CONSOLE_CLIENT_ID": "antiphon-console"}
COLLECTOR = {"ANTIPHON_TRACING_ENDPOINT": "http://127.0.0.1:4318"}

CASES = [
    ("tracing.service_name", {"ANTIPHON_TRACING_SERVICE_NAME": "x"}, "tracing.endpoint", COLLECTOR),
    ("tracing.sample_ratio", {"ANTIPHON_TRACING_SAMPLE_RATIO": "0.5"}, "tracing.endpoint", COLLECTOR),
    ("tracing.content", {"ANTIPHON_TRACING_CONTENT": "true"}, "tracing.endpoint", COLLECTOR),
    ("tracing.metrics_interval", {"ANTIPHON_TRACING_METRICS_INTERVAL": "5"}, "tracing.endpoint", COLLECTOR),
    (
        "media.fetch_private",
        {"ANTIPHON_MEDIA_FETCH_PRIVATE": "true"},
        "media.fetch",
        {"ANTIPHON_MEDIA_FETCH": "files.example.com"},
    ),
    ("lora.project_adapters", REPOSITORIES | {"ANTIPHON_LORA_PROJECT_ADAPTERS": "2"}, "keys.enabled", KEYS),
    (
        "lora.project_adapters",
        KEYS | {"ANTIPHON_LORA_PROJECT_ADAPTERS": "2"},
        "lora.repositories",
        REPOSITORIES,
    ),
    ("lora.project_bytes", {"ANTIPHON_LORA_PROJECT_BYTES": "4096"}, "lora.project_adapters", PROJECTS),
    ("lora.max_bytes", {"ANTIPHON_LORA_MAX_BYTES": "4096"}, "lora.directories", REPOSITORIES),
    (
        "lora.keep_names",
        {"ANTIPHON_LORA_KEEP_NAMES": "false"},
        "lora.repositories",
        {"ANTIPHON_LORA_DIRECTORIES": "/a"},
    ),
    (
        "limits.prefix",
        KEYS | {"ANTIPHON_LIMITS_PREFIX": "x"},
        "limits.url",
        {"ANTIPHON_LIMITS_URL": "redis://127.0.0.1:1/0"},
    ),
    (
        "oidc.console_scopes",
        KEYS | ISSUER | {"ANTIPHON_OIDC_CONSOLE_SCOPES": "openid,email"},
        "oidc.console_client_id",
        CONSOLE,
    ),
    (
        "memory.summary_days",
        {"ANTIPHON_MEMORY_SUMMARY_DAYS": "9", "ANTIPHON_MEMORY_SUMMARIES": "0"},
        "memory.summaries",
        {"ANTIPHON_MEMORY_SUMMARIES": "5"},
    ),
    (
        "responses.days",
        {"ANTIPHON_RESPONSES_DAYS": "9", "ANTIPHON_RESPONSES_STORE": "false"},
        "responses.store",
        {"ANTIPHON_RESPONSES_STORE": "true"},
    ),
    (
        "responses.max_bytes",
        {"ANTIPHON_RESPONSES_MAX_BYTES": "4096", "ANTIPHON_RESPONSES_STORE": "false"},
        "responses.store",
        {"ANTIPHON_RESPONSES_STORE": "true"},
    ),
    (
        "responses.project_bytes",
        {"ANTIPHON_RESPONSES_PROJECT_BYTES": "4194304", "ANTIPHON_RESPONSES_STORE": "false"},
        "responses.store",
        {"ANTIPHON_RESPONSES_STORE": "true"},
    ),
    (
        "server.allowed_hosts",
        KEYS | {"ANTIPHON_ALLOWED_HOSTS": "box.lan"},
        "keys",
        {"ANTIPHON_KEYS": "false"},
    ),
    (
        "server.allowed_hosts",
        {"ANTIPHON_API_KEY": "k" * 16, "ANTIPHON_ALLOWED_HOSTS": "box.lan"},
        "ANTIPHON_API_KEY",
        {"ANTIPHON_API_KEY": ""},
    ),
]


def load(environ: dict[str, str]) -> Settings:
    return load_settings({}, environ, None, [])


@pytest.mark.parametrize(
    ("name", "environ", "missing", "more"), CASES, ids=[f"{case[0]}-{case[2]}" for case in CASES]
)
def test_a_setting_is_refused_without_what_it_needs(name, environ, missing, more):
    with pytest.raises(SettingsError) as refused:
        load(environ)
    assert refused.value.message.startswith(f"{name} (ANTIPHON_")
    assert missing in refused.value.message and refused.value.message.endswith(f", or leave {name} out")
    load(environ | more)


def test_a_memory_budget_is_refused_without_models_on_request():
    environ = {"ANTIPHON_ENGINE_MEMORY_BUDGET": "4096"}
    model: dict[str, object] = {"name": "m", "path": "m.gguf"}
    for models in ([], [model]):
        with pytest.raises(SettingsError, match=r'engine.memory_budget .* no effect.* load = "request"'):
            load_settings({}, environ, None, models)
    load_settings({}, environ, None, [model | {"load": "request"}])


def test_a_console_that_signs_in_needs_the_scope_of_signing_in():
    with pytest.raises(SettingsError, match=r"oidc\.console_scopes lacks openid"):
        load(KEYS | ISSUER | CONSOLE | {"ANTIPHON_OIDC_CONSOLE_SCOPES": "email,profile"})


def test_a_console_that_signs_in_needs_an_issuer_that_its_policy_can_name():
    settings = KEYS | ISSUER | {"ANTIPHON_OIDC_ISSUER": "https://[::1]:8443"}
    load(settings)
    with pytest.raises(SettingsError, match=r"oidc\.issuer has an IPv6 address"):
        load(settings | CONSOLE)


def test_every_dependency_has_a_case():
    names = {f"{rule.section}.{name}" for rule in DEPENDENCIES for name in rule.names}
    assert names == {*(case[0] for case in CASES), "engine.memory_budget"}
