"""`antiphon doctor` asks each provider for its models."""

from collections.abc import Iterator

import pytest

from antiphon.cli.doctor.findings import Finding
from antiphon.cli.doctor.report import check_providers
from antiphon.settings.providers import ProviderSettings, RoutedModelSettings, RouteSettings
from antiphon.settings.schema import Settings
from tests.support.vendors.scripted_upstream import ScriptedUpstream, serve_upstream


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with serve_upstream() as upstream:
        yield upstream


def examine(url: str, *models: str, **more: object) -> list[Finding]:
    provider = ProviderSettings(kind="openai", base_url=url, private=True, **more)  # type: ignore[arg-type]
    routes = tuple(RouteSettings(provider="one", model=model) for model in models)
    routed = (RoutedModelSettings(name="any", routes=routes),) if routes else ()
    return list(check_providers(Settings(providers={"one": provider}, routed_models=routed)))


def test_a_provider_that_answers_is_told_with_its_latency(upstream: ScriptedUpstream):
    (finding,) = examine(upstream.url, "fake")
    assert finding.id == "provider" and "accepts the key, has 2 models" in finding.message


def test_a_model_that_is_not_listed_is_named(upstream: ScriptedUpstream):
    _, finding = examine(upstream.url, "fake", "other")
    assert finding.id == "provider-model-missing" and "does not list other" in finding.message


def test_a_key_that_is_refused_is_told(upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ONE_KEY", "sk-wrong-0123456789abcdef")
    upstream.refused_key = "sk-wrong-0123456789abcdef"
    (finding,) = examine(upstream.url, key="env:ONE_KEY")
    assert finding.id == "provider-key-refused" and "sk-wrong" not in finding.message


def test_a_provider_that_is_away_or_has_no_key_is_told():
    (finding,) = examine("http://127.0.0.1:9/v1")
    assert finding.id == "provider-unreachable" and finding.remedy
    (finding,) = examine("http://127.0.0.1:9/v1", key="env:NEVER_SET_OF_TESTS")
    assert finding.id == "provider-invalid" and "NEVER_SET_OF_TESTS" in finding.message
