"""The manifests of Kubernetes and the compose file, read by other people's programs."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # noqa: TID251 - only safe_load

from antiphon.settings.loading import load_settings
from tests.support.docs import ROOT
from tests.support.programs import require_program
from tests.support.stores import open_new_store

pytestmark = pytest.mark.deploy

DEPLOY = ROOT / "deploy"
FOLDER = DEPLOY / "kubernetes"
VALIDATE = str(ROOT / ".venvs" / "release" / "bin" / "kubernetes-validate")
VERSIONS = ("1.31", "1.37")
NO_SCHEMA = {"service-monitor.yaml"}
"""Kinds that Kubernetes learns from an operator: its own schemas lack them."""

Json = dict[str, Any]


def load(path: Path) -> list[Json]:
    return [each for each in yaml.safe_load_all(path.read_text("utf-8")) if each]


def resources() -> list[Json]:
    return [each for name in kustomization()["resources"] for each in load(FOLDER / name)]


def kustomization() -> Json:
    (only,) = load(FOLDER / "kustomization.yaml")
    return only


def find(kind: str) -> Json:
    (only,) = (each for each in resources() if each["kind"] == kind)
    return only


def test_the_schemas_of_kubernetes_take_every_manifest() -> None:
    files = [str(FOLDER / name) for name in kustomization()["resources"] if name not in NO_SCHEMA]
    for version in VERSIONS:
        command = [VALIDATE, "--strict", "-k", version, *files]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "WARN" not in done.stdout, done.stdout + done.stderr


def test_the_schemas_refuse_a_field_that_does_not_exist(tmp_path: Path) -> None:
    text = (FOLDER / "statefulset.yaml").read_text("utf-8")
    (tmp_path / "bad.yaml").write_text(text.replace("readOnlyRootFilesystem", "readOnlyRootFilesytem"))
    command = [VALIDATE, "--strict", str(tmp_path / "bad.yaml")]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


def test_selectors_and_names_lead_somewhere() -> None:
    pods = find("StatefulSet")["spec"]
    labels = pods["template"]["metadata"]["labels"]
    selectors = [
        pods["selector"]["matchLabels"],
        find("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ]
    selectors.append(find("NetworkPolicy")["spec"]["podSelector"]["matchLabels"])
    services = {each["metadata"]["name"]: each for each in resources() if each["kind"] == "Service"}
    selectors += [each["spec"]["selector"] for each in services.values()]
    assert all(selector.items() <= labels.items() for selector in selectors)
    assert pods["serviceName"] in services
    scraped = find("ServiceMonitor")["spec"]["selector"]["matchLabels"]
    chosen = [
        name for name, each in services.items() if scraped.items() <= each["metadata"]["labels"].items()
    ]
    assert chosen == ["antiphon"]
    (container,) = pods["template"]["spec"]["containers"]
    generated = {
        each["name"] for kind in ("configMap", "secret") for each in kustomization()[f"{kind}Generator"]
    }
    assert {container["envFrom"][0]["secretRef"]["name"]} <= generated
    assert all(
        (FOLDER / name).exists() for each in kustomization()["configMapGenerator"] for name in each["files"]
    )


def test_a_pod_runs_without_root_on_a_read_only_disk() -> None:
    pod = find("StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
    paths = {
        name: container[name]["httpGet"]["path"]
        for name in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert paths == {
        "startupProbe": "/health/ready",
        "readinessProbe": "/health/ready",
        "livenessProbe": "/health",
    }


SECRETS = dict.fromkeys(("POSTGRES_PASSWORD", "REDIS_PASSWORD", "GRAFANA_PASSWORD"), "secret")


def show_config(*files: str, **values: str) -> subprocess.CompletedProcess[str]:
    """What compose understands of its files."""
    command = ["docker", "compose"]
    plugin = shutil.which("docker") and subprocess.run(
        [*command, "version"], capture_output=True, check=False
    )
    if not plugin or plugin.returncode:
        command = [require_program("docker-compose")]
    for name in files:
        command += ["--file", str(DEPLOY / name)]
    env = os.environ | values
    return subprocess.run([*command, "config"], env=env, capture_output=True, text=True, check=False)


def test_compose_takes_its_file() -> None:
    done = show_config("compose.yaml", **SECRETS)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    others = {"backup", "postgresql", "redis", "prometheus", "alertmanager", "grafana"}
    assert set(services) == {"antiphon"} | others
    assert services["antiphon"]["read_only"] is True
    refused = show_config("compose.yaml")
    assert refused.returncode != 0 and "deploy/.env" in refused.stderr


def test_compose_makes_backups_where_the_server_keeps_its_files(tmp_path: Path) -> None:
    """The service's own script makes a backup whose age the server shows, no second one on the same day, and
    leaves no folder of a failed one."""
    (compose,) = load(DEPLOY / "compose.yaml")
    service, server = compose["services"]["backup"], compose["services"]["antiphon"]
    assert {"home:/var/lib/antiphon", "backup:/backup", "./settings:/etc/antiphon:ro"} <= {
        *service["volumes"]
    }
    assert {"home:/var/lib/antiphon", "backup:/backup"} <= {*server["volumes"]}
    assert service["build"]["target"] == "backup" and service["read_only"] is True
    dockerfile = (DEPLOY / "Dockerfile").read_text("utf-8")
    assert re.findall(r"^FROM (\S+)(?: AS (\w+))?", dockerfile, re.MULTILINE)[-2:] == [
        ("server", "backup"),
        ("server", ""),
    ]
    assert re.search(r"install --directory --owner antiphon .* /backup$", dockerfile, re.MULTILINE)
    (script,) = service["command"]
    home, backups, programs = (tmp_path / name for name in ("home", "backups", "programs"))
    for folder in (home, backups, programs):
        folder.mkdir()
    (home / "pepper").write_text("p" * 64)
    open_new_store(home / "antiphon.db").close()
    settings = tmp_path / "antiphon.toml"
    (programs / "sleep").write_text(
        '#!/bin/sh\necho "$1" >> "$BACKUPS/slept"\n[ $(wc -l < "$BACKUPS/slept") -lt 4 ]\n'
    )
    (programs / "antiphon").write_text(f'#!/bin/sh\nexec {sys.executable} -m antiphon "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    env = {"ANTIPHON_HOME": str(home), "ANTIPHON_KEYS": "true", "SETTINGS": str(settings)}
    env |= {"BACKUPS": str(backups), "KEPT": str(service["environment"]["KEPT"])}
    env |= {"PATH": f"{programs}:{os.environ['PATH']}"}
    for text, slept in (("[server\n", ["50m"]), ("", ["10m", "10m", "10m", "10m"])):
        settings.write_text(text)
        (backups / "slept").write_text("x\n" * (4 - len(slept)))
        command = ["bash", "-ec", f"set -e; {script.replace('$$', '$')}"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert (backups / "slept").read_text().splitlines()[4 - len(slept) :] == slept, done.stderr
        assert len([path for path in backups.iterdir() if path.is_dir()]) == (1 if text == "" else 0)
    assert (home / "last-backup").exists()


def test_compose_gives_a_server_the_gpus() -> None:
    done = show_config("compose.yaml", "compose.gpu.yaml", **SECRETS)
    assert done.returncode == 0, done.stderr
    server = yaml.safe_load(done.stdout)["services"]["antiphon"]
    arguments = dict(line.split("=") for line in (DEPLOY / "cuda.env").read_text().splitlines())
    assert server["build"]["args"] == arguments and arguments["BACKEND"] == "cuda"
    (devices,) = server["deploy"]["resources"]["reservations"]["devices"]
    assert devices["driver"] == "nvidia" and devices["capabilities"] == ["gpu"]
    assert server["volumes"] and server["read_only"] is True


def test_the_first_up_finds_every_folder_and_the_settings() -> None:
    """What is missing would be made by the engine: as root, and a folder also in place of a file."""
    (compose,) = load(DEPLOY / "compose.yaml")
    mounts = [volume for each in compose["services"].values() for volume in each.get("volumes", ())]
    tracked = subprocess.run(
        [require_program("git"), "ls-files"], cwd=DEPLOY, capture_output=True, text=True, check=True
    ).stdout
    for folder in {volume.split(":")[0][2:] for volume in mounts if volume.startswith("./")}:
        assert any(path.startswith(f"{folder}/") for path in tracked.splitlines()), folder
    assert {volume.split(":")[0] for volume in mounts if not volume.startswith(".")} == {*compose["volumes"]}
    assert "./settings:/etc/antiphon:ro" in compose["services"]["antiphon"]["volumes"]
    settings = load_settings({}, {}, DEPLOY / "settings" / "antiphon.toml", [])
    assert [model.name for model in settings.models] == ["cantor"]


def build_manifests(folder: Path) -> list[Json]:
    """What `kubectl apply --kustomize` would send."""
    program = require_program("kubectl", "kubernetes-client")
    done = subprocess.run([program, "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def test_the_variant_with_gpus_is_the_same_but_for_them(tmp_path: Path) -> None:
    for name in ("kubernetes", "kubernetes-gpu"):
        shutil.copytree(DEPLOY / name, tmp_path / name)
    shutil.copy(FOLDER / "secrets.example.env", tmp_path / "kubernetes" / "secrets.env")
    plain, gpu = build_manifests(tmp_path / "kubernetes"), build_manifests(tmp_path / "kubernetes-gpu")
    assert [each["kind"] for each in plain] == [each["kind"] for each in gpu]
    assert [each for each in plain if each not in gpu] == [
        each for each in plain if each["kind"] == "StatefulSet"
    ]
    (changed,) = (each for each in gpu if each["kind"] == "StatefulSet")
    pod = changed["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["image"] == "registry.example.org/antiphon:0.1.0-cuda"
    assert [each["key"] for each in pod["tolerations"]] == ["nvidia.com/gpu"]
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(each for each in gpu if each["kind"] != "ServiceMonitor"))
    for version in VERSIONS:
        command = [VALIDATE, "--strict", "-k", version, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "WARN" not in done.stdout, done.stdout + done.stderr


def test_the_prometheus_operator_takes_the_rules() -> None:
    """The command of docs/deploy.md makes a PrometheusRule whose content is the file of rules."""
    page = (ROOT / "docs" / "deploy.md").read_text("utf-8")
    (command,) = re.findall(r"^(sed .*) \| kubectl apply", page, re.MULTILINE)
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    made = yaml.safe_load(done.stdout)
    assert (made["kind"], made["metadata"]["namespace"]) == ("PrometheusRule", "antiphon")
    assert made["spec"] == yaml.safe_load((DEPLOY / "prometheus/antiphon.rules.yml").read_text("utf-8"))


def test_prometheus_loads_the_rules_and_finds_alertmanager(tmp_path: Path) -> None:
    program = require_program("promtool", "prometheus")
    shutil.copytree(DEPLOY / "prometheus", tmp_path / "prometheus")
    (tmp_path / "metrics.key").touch()
    file = tmp_path / "prometheus" / "prometheus.yml"
    file.write_text(file.read_text("utf-8").replace("/etc/antiphon/", f"{tmp_path}/"))
    done = subprocess.run(
        [program, "check", "config", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "antiphon.rules.yml" in done.stdout
    alerting = load(file)[0]["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    (compose,) = load(DEPLOY / "compose.yaml")
    assert [target.split(":")[0] for target in alerting] == ["alertmanager"]
    assert "alertmanager" in compose["services"]


def test_the_alert_rules_pass_promtools_tests(tmp_path: Path) -> None:
    program = require_program("promtool", "prometheus")
    shutil.copytree(DEPLOY / "prometheus", tmp_path / "prometheus")
    command = [program, "test", "rules", str(tmp_path / "prometheus" / "antiphon.rules.test.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rules = tmp_path / "prometheus" / "antiphon.rules.yml"
    text = rules.read_text("utf-8")
    rules.write_text(text.replace("unless on (job, instance, model)", "unless on (model)"))
    hidden = subprocess.run(command, capture_output=True, text=True, check=False)
    assert hidden.returncode != 0, "a parked engine of another server would hide a dead one"


def test_alertmanager_takes_its_file() -> None:
    program = require_program("amtool", "prometheus-alertmanager")
    file = str(DEPLOY / "alertmanager" / "alertmanager.yml")
    done = subprocess.run([program, "check-config", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mounted_folders_and_dashboards_are_there() -> None:
    (compose,) = load(DEPLOY / "compose.yaml")
    mounts = [
        volume.split(":")[0] for each in compose["services"].values() for volume in each.get("volumes", ())
    ]
    assert all((DEPLOY / path).is_dir() for path in mounts if path.startswith("./"))
    for path in (DEPLOY / "grafana").glob("*.json"):
        assert json.loads(path.read_text("utf-8"))["panels"]
