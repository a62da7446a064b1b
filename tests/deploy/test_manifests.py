"""The manifests of Kubernetes and the compose file, read by other people's programs."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # noqa: TID251 - only safe_load

from tests.support.docs import ROOT
from tests.support.programs import require_program

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


def test_compose_takes_its_file() -> None:
    values = dict.fromkeys(("POSTGRES_PASSWORD", "REDIS_PASSWORD", "GRAFANA_PASSWORD"), "secret")
    command = ["docker", "compose"]
    plugin = shutil.which("docker") and subprocess.run(
        [*command, "version"], capture_output=True, check=False
    )
    if not plugin or plugin.returncode:
        command = [require_program("docker-compose")]
    command += ["--file", str(DEPLOY / "compose.yaml"), "config"]
    done = subprocess.run(command, env=os.environ | values, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert set(services) == {"antiphon", "postgresql", "redis", "prometheus", "grafana"}
    assert services["antiphon"]["read_only"] is True
    refused = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    assert refused.returncode != 0 and "deploy/.env" in refused.stderr


def test_mounted_folders_and_dashboards_are_there() -> None:
    (compose,) = load(DEPLOY / "compose.yaml")
    mounts = [
        volume.split(":")[0] for each in compose["services"].values() for volume in each.get("volumes", ())
    ]
    made = {"./models", "./secrets"}  # by their user
    assert all((DEPLOY / path).is_dir() for path in mounts if path.startswith("./") and path not in made)
    for path in (DEPLOY / "grafana").glob("*.json"):
        assert json.loads(path.read_text("utf-8"))["panels"]
