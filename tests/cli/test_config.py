"""`antiphon config`: the effective settings, each with the place that said it."""

import json
import re
from pathlib import Path

import pytest

from antiphon.settings.loading import FLAGS_WITHOUT_VARIABLE
from antiphon.settings.schema import SECTIONS, list_settings
from tests.cli.conftest import Run

KEY = "0123456789abcdef0123"


def test_each_setting_names_the_source_that_won(antiphon: Run, tmp_path: Path):
    (tmp_path / "antiphon.toml").write_text(
        "[server]\nport = 1001\nsend_timeout = 7\nreceive_timeout = 3\n[log]\nlevel = 'debug'\n"
    )
    environ = {"ANTIPHON_PORT": "1002", "ANTIPHON_SEND_TIMEOUT": "8"}
    done = antiphon("config", "--json", "--port", "1003", env=environ)
    shown = json.loads(done.stdout)
    said = [shown[f"server.{name}"] for name in ("port", "send_timeout", "receive_timeout", "host")]
    assert [(one["value"], one["source"], one["place"]) for one in said] == [
        (1003, "flag", "--port"),
        (8.0, "variable", "ANTIPHON_SEND_TIMEOUT"),
        (3.0, "file", "antiphon.toml"),
        ("127.0.0.1", "default", ""),
    ]
    assert shown["log.level"] == {"value": "debug", "source": "file", "place": "antiphon.toml"}


def test_the_key_is_masked_wherever_it_came_from(antiphon: Run, tmp_path: Path):
    (tmp_path / "file.toml").write_text(f'[server]\napi_key = "{KEY}"\n')
    for arguments, environ in (((), {"ANTIPHON_API_KEY": KEY}), (("--config", "file.toml"), {})):
        for form in ((), ("--json",)):
            done = antiphon("config", *arguments, *form, env=environ)
            assert done.returncode == 0 and "***" in done.stdout
            assert KEY not in done.stdout + done.stderr


def test_models_name_the_flag_the_file_or_the_demo(antiphon: Run, tmp_path: Path):
    demo = json.loads(antiphon("config", "--json").stdout)
    assert demo["models.cantor.exact"] == {"value": True, "source": "default", "place": "the demo model"}
    named = json.loads(antiphon("config", "--json", "--model", "cantor").stdout)
    assert named["models.cantor.path"]["value"] == demo["models.cantor.path"]["value"]
    assert [named[f"models.cantor.{each}"]["place"] for each in ("name", "path", "sequences", "exact")] == [
        "--model", "--model", "the demo model", "the demo model",
    ]  # fmt: skip
    by_flag = json.loads(antiphon("config", "--json", "--model", "a=b.gguf", "--threads", "2").stdout)
    assert by_flag["models.a.path"] == {"value": "b.gguf", "source": "flag", "place": "--model"}
    assert by_flag["models.a.threads"] == {"value": 2, "source": "flag", "place": "--threads"}
    (tmp_path / "antiphon.toml").write_text("[[models]]\nname = 'c'\npath = 'd'\nexact = true\n")
    by_file = json.loads(antiphon("config", "--json", "--threads", "2").stdout)
    assert by_file["models.c.exact"]["source"] == "file"
    assert by_file["models.c.sequences"] == {"value": 8, "source": "default", "place": ""}
    assert by_file["models.c.threads"]["place"] == "--threads"


def test_the_table_says_the_same_in_columns(antiphon: Run):
    lines = antiphon("config", "--port", "1003").stdout.splitlines()
    assert ["server.port", "1003", "--port"] in [line.split() for line in lines]
    assert lines[-1] == "settings file: none; antiphon looks for antiphon.toml in this directory"


def test_a_bad_setting_is_one_line_and_a_failure(antiphon: Run):
    done = antiphon("config", env={"ANTIPHON_PROT": "1"})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "antiphon: unknown environment variable ANTIPHON_PROT; did you mean ANTIPHON_PORT?\n"
    )


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("ANTIPHON_SEQUENCE", "; did you mean the flag --sequences? It has no variable"),
        ("ANTIPHON_GPU_LAYERS", "; did you mean the flag --gpu-layers? It has no variable"),
        ("ANTIPHON_MODEL", "; did you mean the flag --model? It has no variable"),
        ("ANTIPHON_WORKER", "; did you mean ANTIPHON_WORKERS?"),
        ("ANTIPHON_log_level", "; did you mean ANTIPHON_LOG_LEVEL?"),
        ("ANTIPHON_PROFILE", ""),
        ("ANTIPHON_DATABASE", ""),
        ("ANTIPHON_", ""),
    ],
)
def test_an_unknown_variable_gets_a_hint_only_if_one_is_near(antiphon: Run, variable: str, hint: str):
    done = antiphon("config", env={variable: "1"})
    assert done.returncode == 1
    assert done.stderr == f"antiphon: unknown environment variable {variable}{hint}\n"


def test_each_flag_without_a_variable_is_named(antiphon: Run):
    flags = re.findall(r"^ +--([a-z-]+)", antiphon("serve", "--help").stdout, re.MULTILINE)
    variables = {name for section in SECTIONS for _, name, _, _ in list_settings(section)}
    names = {
        flag.replace("-", "_")
        for flag in flags
        if f"ANTIPHON_{flag.replace('-', '_').upper()}" not in variables
    }
    assert names == {*FLAGS_WITHOUT_VARIABLE}


def test_adapters_name_the_flag_the_variable_or_the_file(antiphon: Run, tmp_path: Path):
    (tmp_path / "antiphon.toml").write_text("[[adapters]]\nname = 'p'\npath = 'p.gguf'\n")
    environ = {"ANTIPHON_ADAPTERS": "q=q.gguf, r=r.gguf"}
    by_file = json.loads(antiphon("config", "--json").stdout)
    assert by_file["adapters.p.model"] == {"value": "cantor", "source": "file", "place": "antiphon.toml"}
    by_variable = json.loads(antiphon("config", "--json", env=environ).stdout)
    assert by_variable["adapters.r.path"]["place"] == "ANTIPHON_ADAPTERS"
    assert "adapters.p.path" not in by_variable
    by_flag = json.loads(antiphon("config", "--json", "--lora", "s=s.gguf", env=environ).stdout)
    assert by_flag["adapters.s.path"] == {"value": "s.gguf", "source": "flag", "place": "--lora"}
    assert "adapters.q.path" not in by_flag


def test_providers_and_routes_are_listed_without_secrets(antiphon: Run, tmp_path: Path):
    (tmp_path / "antiphon.toml").write_text(
        "[providers.one]\nkind = 'openai'\nbase_url = 'https://one.example/v1'\nkey = 'env:ONE_KEY'\n"
        "proxy = 'http://me:hidden@proxy.example'\n"
        "headers = {X-Team = 'hidden'}\n"
        "[[models]]\nname = 'any'\nroutes = [{provider = 'one', model = 'a', weight = 2}]\n"
        "[models.profile]\nmax_output = 9\n"
    )
    shown = json.loads((done := antiphon("config", "--json")).stdout)
    from_file = {name for name, row in shown.items() if row["source"] == "file"}
    assert from_file == {
        *(f"providers.one.{option}" for option in ("kind", "base_url", "key", "proxy", "headers")),
        *(f"models.any.routes[0].{option}" for option in ("provider", "model", "weight")),
        "models.any.profile.max_output",
    }
    assert shown["providers.one.key"] == {"value": "env:ONE_KEY", "source": "file", "place": "antiphon.toml"}
    assert shown["providers.one.timeout"]["value"] == 600.0
    assert shown["models.any.routes[0].weight"]["value"] == 2.0
    assert shown["providers.one.headers"]["value"] == {"X-Team": "***"} and "hidden" not in done.stdout
