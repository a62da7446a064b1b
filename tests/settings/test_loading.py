"""Settings: precedence, strictness, and the refusal to serve strangers without a key."""

from pathlib import Path

import pytest

from antiphon.errors import SettingsError
from antiphon.settings.loading import load_settings
from antiphon.settings.schema import (
    SECTIONS,
    Settings,
    decode_settings,
    encode_settings,
    list_settings,
    with_assigned_models,
)
from antiphon.settings.server import MIB, is_loopback
from antiphon.settings.tenancy import SMALLEST_SPOOL

KEY = "0123456789abcdef0123"


def loaded(flags=None, environ=None, file=None, models=None) -> Settings:
    return load_settings(flags or {}, environ or {}, file, models or [])


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "antiphon.toml"
    path.write_text(text)
    return path


def test_defaults_are_loopback_without_a_key():
    settings = loaded()
    assert (settings.server.host, settings.server.port, settings.server.api_key) == ("127.0.0.1", 8000, None)


def test_a_flag_beats_the_environment_and_that_beats_the_file(tmp_path):
    file = written(tmp_path, "[server]\nport = 1001\nsend_timeout = 7\nreceive_timeout = 3\n")
    environ = {"ANTIPHON_PORT": "1002", "ANTIPHON_SEND_TIMEOUT": "8"}
    server = loaded({"server": {"port": 1003}}, environ, file).server
    assert (server.port, server.send_timeout, server.receive_timeout) == (1003, 8.0, 3.0)


def test_models_come_from_the_file(tmp_path):
    file = written(tmp_path, '[[models]]\nname = "a"\npath = "a.gguf"\nexact = true\n')
    (model,) = loaded(file=file).models
    assert (model.name, model.exact, model.sequences) == ("a", True, 8)


def test_models_named_by_flags_replace_those_of_the_file(tmp_path):
    file = written(tmp_path, '[[models]]\nname = "a"\npath = "a.gguf"\n')
    assert [model.name for model in loaded(file=file, models=[{"name": "b", "path": "b.gguf"}]).models] == [
        "b"
    ]


def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path):
    with pytest.raises(SettingsError, match=r"receive_timout.*did you mean receive_timeout"):
        loaded(file=written(tmp_path, "[server]\nreceive_timout = 3\n"))


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e300", "-1"])
def test_a_time_that_no_timer_can_hold_is_refused(tmp_path, seconds):
    for name in ("send_timeout", "drain_timeout"):
        with pytest.raises(SettingsError, match=name):
            loaded(file=written(tmp_path, f"[server]\n{name} = {seconds}\n"))


def test_an_unknown_variable_is_refused_with_the_nearest_one():
    with pytest.raises(SettingsError, match="ANTIPHON_APIKEY; did you mean ANTIPHON_API_KEY"):
        loaded(environ={"ANTIPHON_APIKEY": KEY})


def test_variables_of_others_and_of_tests_are_ignored():
    assert loaded(environ={"PATH": "x", "ANTIPHON_TEST_REQUIRE": "all"}) == loaded()


def test_an_empty_variable_is_silence():
    assert loaded(environ={"ANTIPHON_API_KEY": ""}).server.api_key is None


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ANTIPHON_PORT", "http"),
        ("ANTIPHON_PORT", "70000"),
        ("ANTIPHON_SEND_TIMEOUT", "0"),
        ("ANTIPHON_LOG_LEVEL", "loud"),
    ],
)
def test_a_value_out_of_range_is_refused(variable, value):
    with pytest.raises(SettingsError, match=f"{variable} must be .*, not {value!r}"):
        loaded(environ={variable: value})


def test_a_list_is_written_with_commas_in_the_environment():
    server = loaded(environ={"ANTIPHON_CORS_ORIGINS": "https://a.example, https://b.example"}).server
    assert server.cors_origins == ("https://a.example", "https://b.example")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_an_open_address_without_a_key_is_refused_with_advice(host):
    with pytest.raises(SettingsError, match="set ANTIPHON_API_KEY"):
        loaded({"server": {"host": host}})
    assert loaded({"server": {"host": host}}, {"ANTIPHON_API_KEY": KEY}).server.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback_addresses_need_no_key(host):
    assert is_loopback(host)
    assert loaded({"server": {"host": host}}).server.host == host


@pytest.mark.parametrize("key", ["short", "x" * 600, "0123456789abcdef\n0123"])
def test_a_weak_or_unprintable_key_is_refused_and_not_repeated(key):
    with pytest.raises(SettingsError) as refused:
        loaded(environ={"ANTIPHON_API_KEY": key})
    assert key not in refused.value.message


def test_two_models_of_one_name_are_refused():
    pair = [{"name": "a", "path": "1"}, {"name": "a", "path": "2"}]
    with pytest.raises(SettingsError, match="two models are named 'a'"):
        loaded(models=pair)


def test_a_broken_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match="not valid TOML"):
        loaded(file=written(tmp_path, "[server\n"))
    with pytest.raises(SettingsError, match="cannot read the settings file"):
        loaded(file=tmp_path / "absent.toml")


def test_settings_survive_the_way_to_a_child_process():
    settings = loaded({"server": {"port": 1}}, {"ANTIPHON_API_KEY": KEY}, None, [{"name": "a", "path": "a"}])
    assert decode_settings(encode_settings(settings)) == settings


def test_the_key_is_not_in_the_settings_text():
    settings = loaded(environ={"ANTIPHON_API_KEY": KEY})
    assert KEY not in repr(settings) and KEY not in str(settings.server)


def test_every_setting_has_a_variable_of_its_own_and_a_sentence():
    rows = [row for section in SECTIONS for row in list_settings(section)]
    assert len({env for _, env, _, _ in rows}) == len(rows)
    assert all(doc.endswith(".") for _, _, doc, _ in rows)


def test_the_least_size_of_the_spool_is_the_documented_one():
    (doc,) = [doc for _, env, doc, _ in list_settings("ledger") if env == "ANTIPHON_SPOOL_BYTES"]
    assert f"at least {SMALLEST_SPOOL // MIB} MiB in all" in doc
    environ = {"ANTIPHON_KEYS": "true", "ANTIPHON_SPOOL_BYTES": str(SMALLEST_SPOOL)}
    assert loaded(environ=environ).ledger.spool_bytes == SMALLEST_SPOOL
    with pytest.raises(SettingsError, match=f"must be an integer of at least {SMALLEST_SPOOL}"):
        loaded(environ=environ | {"ANTIPHON_SPOOL_BYTES": str(SMALLEST_SPOOL - 1)})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[server]\nport = "http"', "server.port in FILE must be an integer, not 'http'"),
        ("[server]\nport = 70000", "server.port in FILE must be an integer of at most 65535, not 70000"),
        ("[server]\nsend_timeout = 0", "server.send_timeout in FILE must be a number above 0, not 0"),
        (
            "[log]\nlevel = 'loud'",
            "log.level in FILE must be debug, info, warning or error, not 'loud'",
        ),
        (
            "[hub]\nendpoint = 'nohub'",
            "hub.endpoint in FILE must be like https://hub.example.org, not 'nohub'",
        ),
        (
            "[server]\ncors_origins = ['https://a.example', 3]",
            "server.cors_origins[1] in FILE must be a text, not 3",
        ),
        ("server = 3", "server in FILE must be a table, not 3"),
        ("[serv]", "there is no setting serv in FILE; did you mean server?"),
        ("[models]", "models in FILE must be a list of tables, each below [[models]], not a table"),
        ("[[models]]\nname = 'x'", "path of the model x is missing"),
        ("[[models]]\npath = 'y'", "name of the model number 1 is missing"),
        (
            "[[models]]\nname = 'x'\npath = 'y'\nsequences = 0",
            "sequences of the model x must be an integer of at least 1, not 0",
        ),
        ("[[models]]\nname = 'x'\npth = 'y'", "there is no setting pth of the model x; did you mean path?"),
    ],
)
def test_a_refusal_names_the_key_what_is_taken_and_what_came(tmp_path, text, sentence):
    file = written(tmp_path, text)
    with pytest.raises(SettingsError) as refused:
        loaded(file=file)
    assert refused.value.message == sentence.replace("FILE", str(file))


def test_a_refusal_spells_the_key_as_its_strongest_source_does(tmp_path):
    file = written(tmp_path, "[log]\nlevel = 'loud'\n")
    sources = [
        ({"log": {"level": "LOUD"}}, {"ANTIPHON_LOG_LEVEL": "Loud"}, "--log-level .* 'LOUD'"),
        ({}, {"ANTIPHON_LOG_LEVEL": "Loud"}, "ANTIPHON_LOG_LEVEL .* 'Loud'"),
    ]
    for flags, environ, sentence in sources:
        with pytest.raises(SettingsError, match=sentence):
            loaded(flags, environ, file)


def test_a_key_of_the_wrong_kind_is_not_repeated(tmp_path):
    with pytest.raises(SettingsError, match=r"server\.api_key .* must be a text, not a number$"):
        loaded(file=written(tmp_path, "[server]\napi_key = 12345678901234567890\n"))


# --- adapters ---

MODELS = '[[models]]\nname = "a"\npath = "a.gguf"\n[[models]]\nname = "b"\npath = "b.gguf"\n'


def housed(tmp_path: Path, text: str) -> list[tuple[str, str | None]]:
    return [
        (adapter.name, adapter.model)
        for adapter in with_assigned_models(loaded(file=written(tmp_path, text))).adapters
    ]


def test_an_adapter_belongs_to_its_named_or_the_only_model(tmp_path):
    one = '[[models]]\nname = "a"\npath = "a.gguf"\n'
    assert housed(tmp_path, one + '[[adapters]]\nname = "p"\npath = "p.gguf"\n') == [("p", "a")]
    named = '[[adapters]]\nname = "p"\npath = "p.gguf"\nmodel = "b"\n'
    assert housed(tmp_path, MODELS + named) == [("p", "b")]


def test_models_that_make_embeddings_have_no_adapters(tmp_path):
    settings = loaded(file=written(tmp_path, MODELS + '[[adapters]]\nname = "p"\npath = "p.gguf"\n'))
    assert with_assigned_models(settings, None).adapters[0].model is None, "the files tell later"
    assert with_assigned_models(settings, ["b"]).adapters[0].model == "a"
    for embedding in (["a", "b"], ["a"]):
        said = MODELS + '[[adapters]]\nname = "p"\npath = "p.gguf"\nmodel = "a"\n'
        with pytest.raises(SettingsError, match="a is an embedding model, and these have no adapters"):
            with_assigned_models(loaded(file=written(tmp_path, said)), embedding)
    with pytest.raises(SettingsError, match="embedding model"):
        with_assigned_models(settings, ["a", "b"])


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        ('name = "p"\npath = "p"', r"several models \(a, b\).*\[\[adapters\]\]"),
        ('name = "p"\npath = "p"\nmodel = "c"', "'c', which is not served"),
        ('name = "a"\npath = "p"\nmodel = "a"', "two models or adapters are named 'a'"),
        ('name = "p q"\npath = "p"', "name of the adapter p q"),
        ('name = "p"', "path of the adapter p is missing"),
        ('name = "p"\npath = "p"\nmodle = "a"', "modle of the adapter p; did you mean model"),
    ],
    ids=range(6),
)
def test_a_wrong_adapter_is_refused_with_advice(tmp_path, adapter, words):
    with pytest.raises(SettingsError, match=words):
        housed(tmp_path, f"{MODELS}[[adapters]]\n{adapter}\n")


def test_adapters_named_by_flags_replace_those_of_the_file(tmp_path):
    file = written(tmp_path, '[[adapters]]\nname = "p"\npath = "p.gguf"\n')
    settings = load_settings({}, {}, file, [], [{"name": "q", "path": "q.gguf"}])
    assert [adapter.name for adapter in settings.adapters] == ["q"]


@pytest.mark.parametrize("said", ["*", "acme/*", "acme/support-lora", "a/b,c/*"])
def test_repositories_that_adapters_come_from_are_names_or_stars(said):
    settings = loaded(environ={"ANTIPHON_LORA_REPOSITORIES": said})
    assert settings.lora.repositories == tuple(said.split(","))


@pytest.mark.parametrize("said", ["acme", "*/x", "a/b/c", "acme/su*", "https://hub.example/a/b", "a/[b]"])
def test_what_names_no_repository_is_refused_at_the_start(said):
    with pytest.raises(SettingsError, match="ANTIPHON_LORA_REPOSITORIES"):
        loaded(environ={"ANTIPHON_LORA_REPOSITORIES": said})


def test_directories_of_adapters_are_a_list_in_the_environment():
    settings = loaded(environ={"ANTIPHON_LORA_DIRECTORIES": "/a, /b"})
    assert settings.lora.directories == ("/a", "/b")
    assert decode_settings(encode_settings(settings)) == settings


@pytest.mark.parametrize("network", ["proxy.example", "10.0.0.0/33", ""])
def test_a_trusted_proxy_must_be_an_address_or_a_network(network):
    with pytest.raises(SettingsError, match=r"trusted_proxies: .*10\.0\.0\.0/8"):
        load_settings({"server": {"trusted_proxies": ["127.0.0.1", network]}}, {}, None, [])
