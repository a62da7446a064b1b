"""LiteLLM's configurations as settings: what is taken loads, and everything else is named."""

import shlex
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # noqa: TID251 - the files that are read are YAML

from antiphon.assembly.vendors import require_providers
from antiphon.cli.litellm.config import VENDORS, read_config
from antiphon.cli.litellm.convert import convert_config, format_toml
from antiphon.engines.vendors.profiles import list_presets
from antiphon.errors import SettingsError
from antiphon.settings.loading import load_settings
from antiphon.settings.schema import Settings
from tests.cli.conftest import Run

BALANCED = """
model_list:
  - model_name: gpt-4o
    litellm_params: {model: azure/eu, api_base: "https://eu.openai.azure.com/", api_key: os.environ/EU_KEY,
                     api_version: "2024-02-01", rpm: 600}
  - model_name: gpt-4o
    litellm_params: {model: azure/ca, api_base: "https://ca.openai.azure.com/openai/",
                     api_key: os.environ/CA_KEY, rpm: 300}
  - model_name: claude
    litellm_params: {model: anthropic/claude-sonnet-4-5, timeout: 300, stream_timeout: 60, temperature: 0.2}
    model_info: {mode: chat, max_output_tokens: 64000, input_cost_per_token: 0.000003,
                 output_cost_per_token: 0.000015}
router_settings:
  routing_strategy: least-busy
  num_retries: 2
  timeout: 30
  fallbacks: [{"gpt-4o": ["claude", "gone"]}]
  model_group_alias: {"gpt-4": "gpt-4o", "old": {"model": "gone", "hidden": true}}
litellm_settings: {drop_params: true, json_logs: true, success_callback: ["langfuse"]}
general_settings:
  {master_key: os.environ/MASTER, database_url: "postgresql://u:canary@h/db", alerting: ["slack"]}
environment_variables: {EU_KEY: canary}
"""
MIXED = """
model_list:
  - {model_name: local, litellm_params: {model: openai/facebook/opt, api_base: "http://vllm:8000/v1",
     api_key: none, order: 1, max_parallel_requests: 8}}
  - {model_name: local, litellm_params: {model: hosted_vllm/opt, api_base: os.environ/VLLM_BASE, order: 2}}
  - {model_name: llama, litellm_params: {model: ollama_chat/llama3.2, api_base: "http://localhost:11434"}}
  - {model_name: plain, litellm_params: {model: gpt-4o-mini}}
  - {model_name: fast, litellm_params: {model: groq/llama-3.3-70b, api_key: canary-key, organization: org-1,
     extra_headers: {x-trace: "1", Authorization: canary}}}
  - {model_name: "anthropic/*", litellm_params: {model: "anthropic/*", api_key: os.environ/ANTHROPIC_API_KEY}}
  - {model_name: "*", litellm_params: {model: "openrouter/*"}}
  - {model_name: bed, litellm_params: {model: bedrock/anthropic.claude-v2, aws_region_name: us-east-1}}
  - {model_name: whisper, litellm_params: {model: whisper-1}, model_info: {mode: audio_transcription}}
  - {model_name: away, litellm_params: {model: openai/x, api_base: os.environ/NOT_SET}}
  - {model_name: "a-*-b", litellm_params: {model: "openai/*"}}
litellm_settings: {default_fallbacks: [plain], request_timeout: 20.5}
include: [other.yaml]
"""
VARIABLES = "EU_KEY CA_KEY ANTHROPIC_API_KEY OPENAI_API_KEY GROQ_API_KEY OPENROUTER_API_KEY"
ENVIRON = dict.fromkeys(VARIABLES.split(), "x") | {"VLLM_BASE": "http://10.0.0.7:8000/v1"}


def load(text: str, folder: Path) -> tuple[Settings, str]:
    """The settings that Antiphon loads from the result, and the lines about what it lacks."""
    tree, notes = convert_config(yaml.safe_load(text), ENVIRON)
    written = format_toml(tree)
    assert "canary" not in written + "\n".join(notes)
    path = folder / "antiphon.toml"
    path.write_text(written, "utf-8")
    settings = load_settings({}, {}, path, [])
    require_providers(settings, ENVIRON)
    return settings, "\n".join(notes)


def list_routes(settings: Settings) -> dict[str, list[tuple[object, ...]]]:
    return {
        model.name: [(each.provider, each.model, each.order, each.weight) for each in model.list_routes()]
        for model in settings.routed_models
    }


def test_balanced_deployments_with_fallbacks_are_routes(tmp_path: Path) -> None:
    settings, notes = load(BALANCED, tmp_path)
    assert list_routes(settings) == {
        "gpt-4o": [
            ("azure", "eu", 1, 600),
            ("azure-2", "ca", 1, 300),
            ("anthropic", "claude-sonnet-4-5", 2, 1),
        ],
        "claude": [("anthropic", "claude-sonnet-4-5", 1, 1)],
    }
    first, second, claude = (settings.providers[name] for name in ("azure", "azure-2", "anthropic"))
    assert (first.base_url, second.base_url) == (
        "https://eu.openai.azure.com/openai/v1",
        "https://ca.openai.azure.com/openai/v1",
    )
    assert (first.key, first.timeout, claude.timeout, claude.first_byte_timeout) == (
        "env:EU_KEY",
        30,
        300,
        60,
    )
    assert claude.key == "env:ANTHROPIC_API_KEY"
    assert [(each.name, each.model) for each in settings.aliases] == [("gpt-4", "gpt-4o")]
    assert settings.routed_models[1].profile.max_output == 64_000
    assert (settings.log.format, settings.keys.enabled) == ("json", True)
    for told in (
        "model_list[0] (gpt-4o).rpm: no setting; with keys enabled, limit the model",
        "antiphon limits set model gpt-4o requests 300 --per minute",
        "model_list[2] (claude).litellm_params.temperature: left out",
        "antiphon prices add anthropic/claude-sonnet-4-5 --input 3 --output 15 --currency USD",
        "router_settings.fallbacks (gpt-4o): left out 'gone'",
        "router_settings.model_group_alias.old: left out",
        "router_settings.routing_strategy: least-busy is left out",
        "router_settings.num_retries: left out",
        "litellm_settings.drop_params: left out",
        "litellm_settings.success_callback: left out",
        "general_settings.database_url: keys are enabled",
        "general_settings.master_key: set ANTIPHON_API_KEY to the value of MASTER",
        "general_settings.alerting: left out",
        "environment_variables.EU_KEY: set this variable",
    ):
        assert told in notes
    assert "api_version" not in notes and len(notes.splitlines()) == 14


def test_own_servers_patterns_and_what_is_not_served(tmp_path: Path) -> None:
    settings, notes = load(MIXED, tmp_path)
    routes = list_routes(settings)
    assert routes["local"] == [
        ("openai-compatible", "facebook/opt", 1, 1),
        ("vllm", "opt", 2, 1),
        ("openai", "gpt-4o-mini", 3, 1),
    ]
    assert routes["plain"] == [("openai", "gpt-4o-mini", 1, 1)]
    assert routes["anthropic/*"] == [("anthropic", None, 1, 1)]
    assert routes["*"] == [("openrouter", None, 1, 1)]
    assert set(routes) == {"local", "llama", "plain", "fast", "anthropic/*", "*"}
    server, vllm, ollama = (settings.providers[name] for name in ("openai-compatible", "vllm", "ollama"))
    assert (server.base_url, server.private, server.key) == ("http://vllm:8000/v1", True, None)
    assert (vllm.base_url, vllm.private) == ("http://10.0.0.7:8000/v1", True)
    assert (ollama.base_url, ollama.timeout) == ("http://localhost:11434/v1", 20.5)
    groq = settings.providers["groq"]
    assert (groq.key, groq.headers) == ("env:GROQ_API_KEY", {"x-trace": "1", "OpenAI-Organization": "org-1"})
    assert settings.routed_models[0].routes[0].in_flight == 8
    for told in (
        "model_list[4] (fast).api_key: the file contains the key; set the variable GROQ_API_KEY to it",
        "model_list[4] (fast).Authorization: left out",
        "model_list[7] (bed): left out; the vendor 'bedrock' is not supported",
        "model_list[8] (whisper): left out; Antiphon serves no models of the mode audio_transcription",
        "model_list[9] (away): left out; the variable NOT_SET is not set",
        "model_list[10] (a-*-b): left out; a pattern must end with *",
        "litellm_settings.default_fallbacks (anthropic/*): left out 'plain'",
        "the file.include: left out",
    ):
        assert told in notes


def test_every_vendor_leads_to_a_provider_that_loads(tmp_path: Path) -> None:
    entries = [
        {"model_name": name, "litellm_params": {"model": f"{name}/m", "api_base": "https://example.org/x"}}
        for name in VENDORS
    ]
    tree, notes = convert_config({"model_list": entries}, {})
    path = tmp_path / "antiphon.toml"
    path.write_text(format_toml(tree))
    settings = load_settings({}, {}, path, [])
    assert [model.name for model in settings.routed_models] == list(VENDORS) and notes == []
    assert {vendor.preset for vendor in VENDORS.values()} - {None} <= set(list_presets())
    for name, table in settings.providers.items():
        assert table.preset or name not in list_presets()  # no preset of that name acts unasked


@pytest.mark.parametrize(
    "text",
    [
        "model_list: 5",
        "model_list: [1, {}, {model_name: 5}, {model_name: a}, {model_name: b, litellm_params: {model: }}]",
        "model_list: [{model_name: a, litellm_params: {model: openai/x, timeout: soon, weight: -1}}]",
        "model_list: [{model_name: a, litellm_params: {model: openai/x, api_key: 5, api_base: 7}}]",
        "router_settings: {fallbacks: [5, {a: b}], model_group_alias: [1]}\ngeneral_settings: []",
        "1: 2\nmodel_list: [{model_name: 'ä \"', litellm_params: {model: gpt-4o, organization: [1]}}]",
    ],
)
def test_nonsense_ends_in_notes_or_in_settings_that_load(tmp_path: Path, text: str) -> None:
    tree, _ = convert_config(yaml.safe_load(text), {})
    path = tmp_path / "antiphon.toml"
    path.write_text(format_toml(tree), "utf-8")
    load_settings({}, {}, path, [])


def test_written_tables_are_read_back_as_they_were() -> None:
    tree = {
        "a": {"b": 'x"\\\x7f\n\tä', "c": True, "d": 0.5, "e.f g": {"h": 5}},
        "list": [{"x": 1, "deep": [{"y": "1"}, {"y": "2"}]}, {"x": 2}],
    }
    assert tomllib.loads(format_toml(tree)) == tree


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"a: [", "is no YAML in line"),
        (b"- 1", "has no model_list"),
        (b"\xff\xfe\x00", "is no YAML"),
        (b"a: !!python/object/apply:os.system [false]", "is no YAML"),
        (b" " * 5_000_000, "more than 4,194,304 bytes"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_none_is_told_in_one_sentence(
    tmp_path: Path, content: bytes | None, told: str
) -> None:
    path = tmp_path / "config.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=told):
        read_config(path)


def test_the_command_writes_a_new_file_and_no_other(antiphon: Run, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(MIXED)
    done = antiphon("import", "litellm", "config.yaml", "--out", "new.toml")
    assert done.stdout == "wrote new.toml: 6 models, 6 providers\n", done.stderr
    assert "antiphon: model_list[7] (bed): left out" in done.stderr
    again = antiphon("import", "litellm", "config.yaml", "--out", "new.toml")
    assert (again.returncode, "File exists" in again.stderr) == (1, True)
    (tmp_path / "config.yaml").write_text("model_list: []")
    done = antiphon("import", "litellm", "config.yaml")
    assert done.returncode == 1 and "no model that Antiphon can serve" in done.stderr
    assert not (tmp_path / "antiphon.toml").exists()


SECRETIVE = """
model_list:
  - {model_name: m, litellm_params: {model: openai/gpt-4o, weight: 3,
     extra_headers: {x-api-key: canary, X-Auth-Token: canary, Cookie: canary, "a b": canary, x-trace: "1"}}}
  - {model_name: m, litellm_params: {model: anthropic/claude-sonnet-4-5, weight: 0}}
"""


def test_headers_of_credentials_and_half_of_weights_are_left_out(tmp_path: Path) -> None:
    settings, notes = load(SECRETIVE, tmp_path)
    assert settings.providers["openai"].headers == {"x-trace": "1"}
    for name in ("x-api-key", "X-Auth-Token", "Cookie", "a b"):
        assert f"model_list[0] (m).{name}: left out; add it to the provider's headers" in notes
    assert "model_list (m).weight: left out; each deployment of the model must have a weight above 0" in notes
    assert [weight for *_, weight in list_routes(settings)["m"]] == [1, 1]


WRONG = """
model_list:
  - {model_name: m, rpm: none, litellm_params: {model: openai/gpt-4o, order: first,
     max_parallel_requests: 0.5, weight: heavy, tpm: -1, api_base: "https://a.example/v1", base_url: "https://b.example/v1",
     extra_headers: [1]}, model_info: {max_output_tokens: many, input_cost_per_token: cheap}}
  - {model_name: n, litellm_params: {model: openai/gpt-4o, order: 5000}, model_info: {max_output_tokens: 10}}
  - {model_name: n, litellm_params: {model: openai/gpt-4o, order: 2}, model_info: {max_output_tokens: 20}}
  - {model_name: o, litellm_params: {model: openai/gpt-4o}, model_info: 5}
router_settings: {timeout: 30, fallbacks: [m], model_group_alias: [a]}
litellm_settings: {request_timeout: 20, json_logs: always, fallbacks: {m: [n]}}
general_settings: [1]
environment_variables: 7
"""


@pytest.mark.parametrize(
    "told",
    [
        "model_list[0] (m).litellm_params.order: left out; it is no whole number above 0",
        "model_list[0] (m).litellm_params.max_parallel_requests: left out; it is no whole number above 0",
        "model_list (m).weight: left out",
        "model_list[0] (m).rpm: left out; it is no number",
        "model_list[0] (m).litellm_params.tpm: left out; it is no number",
        "model_list[0] (m).base_url: left out; api_base takes precedence",
        "model_list[0] (m).extra_headers: left out; it is no table",
        "model_list[0] (m).model_info.max_output_tokens: left out; it is no whole number",
        "model_list[0] (m).model_info.input_cost_per_token: left out; it is no number",
        "model_list[1] (n).litellm_params.order: 1000 is used",
        "model_list[2] (n).model_info.max_output_tokens: left out; an earlier deployment",
        "model_list[3].model_info: left out; it is no table",
        "router_settings.fallbacks: left out 'm'; it is no table",
        "router_settings.model_group_alias: left out; it is no table",
        "litellm_settings.request_timeout: left out; router_settings.timeout takes precedence",
        "litellm_settings.json_logs: left out; it is neither true nor false",
        "litellm_settings.fallbacks: left out; it is no list",
        "general_settings: left out; it is no table",
        "environment_variables: left out; it is no table",
    ],
)
def test_what_cannot_be_taken_is_named(told: str) -> None:
    _, notes = convert_config(yaml.safe_load(WRONG), {})
    assert [line for line in notes if line.startswith(told)], notes


def test_bounds_of_a_route_are_taken_or_named(tmp_path: Path) -> None:
    settings, notes = load(WRONG, tmp_path)
    assert [order for *_, order, _ in list_routes(settings)["m"]] == [1]
    assert [order for *_, order, _ in list_routes(settings)["n"]] == [1000, 2]
    assert settings.routed_models[0].list_routes()[0].in_flight is None
    assert settings.routed_models[1].profile.max_output == 10
    _, notes = load("model_list: [{model_name: a, litellm_params: {model: openai/x, order: '3'}}]", tmp_path)
    assert notes == ""


def test_a_list_of_models_that_is_none_is_named() -> None:
    assert convert_config({"model_list": 5}, {})[1] == ["model_list: left out; it is no list"]


def test_a_price_of_nothing_needs_no_note() -> None:
    info = {"input_cost_per_token": 0, "output_cost_per_token": 0.0}
    entry = {"model_name": "a", "litellm_params": {"model": "openai/x"}, "model_info": info}
    assert convert_config({"model_list": [entry]}, {})[1] == []


def test_told_commands_quote_the_names_of_models() -> None:
    params = {"model": "openai/x", "rpm": 5}
    deployment = {"litellm_params": params, "model_info": {"input_cost_per_token": 1e-6}}
    _, notes = convert_config({"model_list": [{"model_name": "it's; a b", **deployment}]}, ENVIRON)
    commands = [shlex.split(line[line.index("antiphon ") :]) for line in notes if "antiphon " in line]
    assert [command[3:5] for command in commands] == [["model", "it's; a b"], ["openai/x", "--input"]]


def test_a_limit_of_a_pattern_is_told_for_keys() -> None:
    entry = {"model_name": "openai/*", "litellm_params": {"model": "openai/*", "rpm": 5}}
    (note,) = convert_config({"model_list": [entry]}, ENVIRON)[1]
    assert note.endswith("antiphon limits set key KEY --models 'openai/*' requests 5 --per minute")
