"""Other names of models: how rules are chosen, what a setting may say, and what callers see."""

import pytest

from antiphon.cli.serve_options import ServeOptions
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.domain.models import Aliases
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import ModelNotFound, SettingsError
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.settings.models import AliasSettings, require_aliases
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import ScriptedEngine
from tests.support.http_server import CHAT, HELLO, Served, serving_edge

FIREWORKS = {"accounts/fireworks/models/*": "*"}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("gpt-4o", "cantor"),
        ("gpt-4o-mini", "small"),
        ("gpt-4.1", "large"),
        ("gpt-", None),
        ("xgpt-4o", None),
        ("accounts/fireworks/models/cantor", "cantor"),
        ("accounts/fireworks/models/org/name", "org/name"),
        ("accounts/fireworks/models/", None),
        ("accounts/fireworks/models/cantor#me/deployment", None),
        ("accounts/fireworks/models/cantor#", None),
        ("a.b", "dotted"),
        ("axb", None),
        ("two\nlines-4", None),
    ],
)
def test_names_come_before_patterns_and_longer_patterns_first(name, target):
    rules = {"gpt-*": "large", "gpt-4o": "cantor", "gpt-4o-*": "small", "a.b": "dotted"}
    for order in (rules, dict(reversed(rules.items()))):
        assert Aliases(order, FIREWORKS).find_target(name) == target


def test_one_set_of_rules_comes_before_the_next():
    aliases = Aliases({"accounts/*": "cantor"}, FIREWORKS)
    assert aliases.find_target("accounts/fireworks/models/llama") == "cantor"
    assert Aliases({"accounts/fireworks/models/*": "*-q8"}, FIREWORKS).find_target(
        "accounts/fireworks/models/llama"
    ) == ("llama-q8")


def models(**aliases):
    made = tuple(Model(name, (ModelRoute(ScriptedEngine()),), 7) for name in ("cantor", "gpt-4"))
    return ModelRegistry(made, Aliases(aliases | {"other/*": "*"}))


def test_names_of_models_come_before_aliases_which_do_not_chain():
    found = models(**{"gpt-4": "cantor", "first": "second", "second": "cantor"})
    assert found.get("gpt-4").name == "gpt-4"
    assert found.get("other/cantor").name == "cantor"
    for name in ("first", "other/second", "other/zzz"):
        with pytest.raises(
            ModelNotFound, match=f"`{name}` does not exist.* This server has: cantor, gpt-4.$"
        ):
            found.get(name)


def test_a_deployments_name_is_never_dropped():
    with pytest.raises(ModelNotFound, match="leave out # and the text after it"):
        models().get("other/cantor#me/mine")
    named = models(**{"other/cantor#me/mine": "gpt-4"})
    assert named.get("other/cantor#me/mine").name == "gpt-4"


@pytest.mark.parametrize(
    ("rules", "fixed", "sentence"),
    [
        ([("a", "zzz")], True, "the alias 'a' leads to 'zzz', which is not served; this server has: m, n"),
        ([("a", "b"), ("b", "m")], True, "the alias 'a' leads to the alias 'b'"),
        ([("a", "a")], False, "the alias 'a' leads to the alias 'a'"),
        ([("m", "n")], True, "the alias 'm' is the name of a model"),
        ([("a", "m"), ("a", "n")], True, "two aliases are named 'a'"),
        ([("a*b*", "m")], True, "at most one *"),
        ([("a", "*")], True, "at most one *"),
    ],
)
def test_an_alias_that_cannot_be_is_a_settings_error(rules, fixed, sentence):
    with pytest.raises(SettingsError) as refused:
        require_aliases([AliasSettings(*rule) for rule in rules], ["m", "n"], fixed)
    assert sentence in refused.value.message


def test_what_may_be_loaded_later_may_have_an_alias_now():
    rules = [AliasSettings("a", "later"), AliasSettings("b/*", "*"), AliasSettings("c-*", "m")]
    require_aliases(rules, ["m"], is_fixed=False)


def test_aliases_are_said_in_the_file_the_variable_or_by_flag(tmp_path, monkeypatch):
    file = tmp_path / "antiphon.toml"
    file.write_text('[[aliases]]\nname = "gpt-*"\nmodel = "cantor"\n')

    def said(*flags):
        return [
            (alias.name, alias.model)
            for alias in ServeOptions(config=file, aliases=flags).load_settings().aliases
            if alias.name != "demo"  # another name of the demo model
        ]

    assert said() == [("gpt-*", "cantor")]
    monkeypatch.setenv("ANTIPHON_ALIASES", "a=cantor, b/*=*")
    assert said() == [("a", "cantor"), ("b/*", "*")]
    assert said("c=cantor") == [("c", "cantor")]
    with pytest.raises(SettingsError, match="write an alias as NAME=MODEL, not 'c'"):
        said("c")
    with pytest.raises(SettingsError, match="leads to 'zzz', which is not served"):
        said("c=zzz")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('name = "a"', "model of the alias a is missing"),
        ('name = ""\nmodel = "m"', "name of the alias number 1 must be a text that is not empty"),
        ('name = "a"\nmodell = "m"', "did you mean model"),
    ],
)
def test_a_wrong_alias_is_named(tmp_path, line, sentence):
    file = tmp_path / "antiphon.toml"
    file.write_text(f"[[aliases]]\n{line}\n")
    with pytest.raises(SettingsError) as refused:
        ServeOptions(config=file).load_settings()
    assert sentence in refused.value.message


@pytest.fixture
async def served():
    engine = ScriptedEngine()
    found = ModelRegistry((Model("m", (ModelRoute(engine),), 7),), Aliases({"gpt-*": "m"}))
    metrics = Metrics()
    edge = AppState(Pipeline(found, metrics, 0.0), found, OpenAI(), ServerSettings(), metrics=metrics)
    async with serving_edge(edge) as (port, connections):
        yield Served(port, engine, edge, connections)


async def test_answers_repeat_the_alias_that_the_request_has(served):
    reply = await served.ask(CHAT, HELLO | {"model": "gpt-4o"})
    assert (reply.status, reply.json()["model"]) == (200, "gpt-4o")
    events = (await served.ask(CHAT, HELLO | {"model": "gpt-5", "stream": True})).events()
    assert {event["model"] for event in events[:-1]} == {"gpt-5"}
    assert [stream.request.model for stream in served.engine.streams] == ["m", "m"]


async def test_a_model_is_shown_under_its_alias(served):
    shown = (await served.ask("/v1/models/gpt-4o")).json()
    assert (shown["id"], shown["root"], shown["profile"]["context_length"]) == ("gpt-4o", "m", 2048)
    listed = (await served.ask("/v1/models")).json()["data"]
    assert [model["id"] for model in listed] == ["m"]
    assert (await served.ask("/tokenize", {"model": "gpt-4o", "prompt": "a"})).json()["tokens"] == [97]


async def test_names_that_a_pattern_takes_are_no_labels(served):
    for number in range(3):
        await served.ask(CHAT, HELLO | {"model": f"gpt-{number}"})
    text = (await served.ask("/metrics")).body.decode()
    assert 'antiphon_generations_total{model="m",status="ok"} 3' in text
    assert "gpt-" not in text
