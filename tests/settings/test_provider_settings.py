"""Settings of providers that are wrong are refused at the start, and no refusal shows a secret."""

import json
from pathlib import Path

import msgspec
import pytest

from antiphon.assembly.vendors import (
    RoutedModelBuilder,
    build_client,
    build_vendors,
    require_providers,
    resolve_provider,
)
from antiphon.dialects.messages.decode import decode_messages
from antiphon.domain.context import Context
from antiphon.engines.vendors.engine import PreparedVendorRequest
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.responses.dialect import ResponsesUpstream
from antiphon.errors import SettingsError
from antiphon.settings.loading import load_settings
from antiphon.settings.providers import ProviderSettings, RoutedModelSettings
from antiphon.settings.schema import Settings

FIRST = "[providers.first]\nkind = 'openai'\nbase_url = 'https://one.example/v1'\n"


def refuse(tmp_path: Path, text: str) -> str:
    file = tmp_path / "antiphon.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        require_providers(load_settings({}, {}, file, []), {})
    return caught.value.message


@pytest.mark.parametrize(
    "line",
    ["key = 'hidden'", "headers = { x-api-key = ['hidden'] }", "proxy = 'ftp://a:hidden@one.example'"],
)
def test_a_refusal_shows_no_secret(tmp_path: Path, line: str):
    told = refuse(tmp_path, FIRST + line)
    assert "must be" in told and "hidden" not in told


def test_an_address_with_a_password_is_refused_without_it(tmp_path: Path):
    assert "hidden" not in refuse(tmp_path, FIRST.replace("one.", "a:hidden@one."))


@pytest.mark.parametrize("name", ["X A", "X-A\\r\\nEvil", "", "X:", "TE", "Expect"])
def test_a_header_that_cannot_be_sent_is_refused(tmp_path: Path, name: str):
    assert "headers cannot set" in refuse(tmp_path, FIRST + f'headers = {{ "{name}" = "1" }}')


@pytest.mark.parametrize("place", ["one.example:99999", "one.example:x", "[zz]", "one.example:0"])
def test_an_address_that_cannot_be_called_is_refused(tmp_path: Path, place: str):
    assert "base_url has no usable" in refuse(tmp_path, FIRST.replace("one.example", place))
    assert "proxy has no usable" in refuse(tmp_path, f"{FIRST}proxy = 'http://{place}'")


@pytest.mark.parametrize("option", ["takes", "refuses"])
def test_an_unknown_parameter_is_refused_with_the_nearest(tmp_path: Path, option: str):
    told = refuse(tmp_path, f"{FIRST}{option} = ['temperatur']")
    assert "'temperatur'; did you mean temperature?" in told


def test_a_profile_refuses_known_parameters_only(tmp_path: Path):
    model = "[[models]]\nname = 'a'\nprovider = 'first'\nprofile = { refused = ['stops'] }\n"
    assert "'stops'; did you mean stop?" in refuse(tmp_path, FIRST + model)


def test_certificates_that_cannot_be_read_are_refused(tmp_path: Path):
    (tmp_path / "empty.pem").write_text("")
    for name in ("missing.pem", "empty.pem"):
        assert "cannot be used" in refuse(tmp_path, f"{FIRST}ca_file = '{tmp_path / name}'")


@pytest.mark.parametrize("name", ["top_k", "stop", "guided_regex", "model", "stream", "generationConfig"])
def test_extra_params_are_fields_of_the_vendor_alone(tmp_path: Path, name: str):
    assert f"extra_params cannot have '{name}'" in refuse(tmp_path, f"{FIRST}extra_params = ['{name}']")


@pytest.mark.parametrize("name", ["", "a b", "a" * 65, "1"])
def test_an_extra_param_without_a_usable_name_is_refused(tmp_path: Path, name: str):
    assert "extra_params" in refuse(tmp_path, f"{FIRST}extra_params = ['{name}']")


@pytest.mark.parametrize(
    "name", ["Authorization", "X-Api-Key", "cookie", "Host", "connection", "x y", "X-Project"]
)
def test_an_extra_header_of_credentials_is_refused(tmp_path: Path, name: str):
    lines = f"headers = {{ x-project = 'p' }}\nextra_headers = ['x-trace-id', '{name}']"
    assert f"extra_headers cannot have '{name}'" in refuse(tmp_path, FIRST + lines)


def test_an_extra_header_of_the_wire_format_is_refused():
    settings = ProviderSettings(
        preset="anthropic", key="env:KEY", extra_headers=("anthropic-beta", "Anthropic-Version")
    )
    with pytest.raises(SettingsError, match="extra_headers cannot have 'Anthropic-Version'"):
        build_client(resolve_provider("first", settings, {"KEY": "a"}))


def test_only_the_kind_openai_has_another_api(tmp_path: Path):
    settings = ProviderSettings(preset="anthropic", key="env:KEY", api="responses")
    with pytest.raises(SettingsError, match=r"providers\.first\.api: only the kind openai"):
        resolve_provider("first", settings, {"KEY": "a"})
    assert "api" in refuse(tmp_path, f"{FIRST}api = 'assistants'")


def test_the_api_of_a_provider_chooses_its_upstream_dialect():
    for api, upstream in (("chat", OpenAIUpstream), ("responses", ResponsesUpstream)):
        lines = f'preset = "openai"\nkey = "env:KEY"\napi = "{api}"'
        settings = msgspec.toml.decode(lines, type=ProviderSettings)
        assert type(build_client(resolve_provider("first", settings, {"KEY": "a"})).upstream) is upstream


async def test_only_the_kind_anthropic_passes_hosted_tools():
    wrong = ProviderSettings(preset="openai", key="env:KEY", pass_hosted_tools=True)
    with pytest.raises(SettingsError, match=r"providers\.first\.pass_hosted_tools: only the kind anthropic"):
        resolve_provider("first", wrong, {"KEY": "a"})
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    search = {"type": "web_search_20250305", "name": "web_search"}
    request = decode_messages(json.dumps(body | {"tools": [search]}).encode()).request
    routed = RoutedModelSettings(name="m", provider="first")
    for passes in (False, True):
        provider = ProviderSettings(preset="anthropic", key="env:KEY", pass_hosted_tools=passes)
        vendors = build_vendors(
            Settings(providers={"first": provider}, routed_models=(routed,)), {"KEY": "a"}
        )
        (route,) = RoutedModelBuilder(vendors, {}, 0).build_model(routed).routes
        prepared = await route.engine.prepare(request, Context("req-1"))
        assert isinstance(prepared, PreparedVendorRequest)
        assert (b"web_search" in prepared.call.body) is passes
