"""Every case renders, lints strictly, is valid Kubernetes, and is the same twice, across revisions and as a subchart."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.pod_security import violations
from tests.support.chart import (
    CASES,
    CHART,
    MINORS,
    ChartError,
    Helm,
    Manifest,
    Rendered,
    containers_of,
    merged,
    nested,
    values_of,
)

# Kinds of others, which the schemas of Kubernetes do not know.
FOREIGN = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject", "HTTPRoute"}


@pytest.mark.parametrize("name", list(CASES))
def test_a_case_lints_strictly(helm: Helm, name: str) -> None:
    for minor in (MINORS[0], MINORS[-1]):
        assert helm.lint(values_of(name), f"v{minor}.0") == []


def test_a_case_is_valid_for_the_oldest_and_the_newest_minor(helm: Helm, case: Rendered) -> None:
    assert helm.validate(_of_kubernetes(case), (MINORS[0], MINORS[-1])) == []


def test_what_can_be_switched_on_is_valid_for_the_minors_between(helm: Helm, rendered: dict[str, Rendered]) -> None:
    assert helm.validate(_of_kubernetes(rendered["everything"]), MINORS[1:-1]) == []


def _of_kubernetes(case: Rendered) -> list[Manifest]:
    return [manifest for manifest in case.manifests if manifest["kind"] not in FOREIGN]


def test_the_schemas_find_what_is_wrong(helm: Helm, rendered: dict[str, Rendered]) -> None:
    broken = merged(rendered["minimal"].one("Deployment", "-api"), nested("spec.template.spec.hostNetwerk", "yes"))
    assert len(helm.validate([broken])) == len(MINORS)


def test_every_pod_may_run_under_restricted_pod_security(case: Rendered) -> None:
    pods = list(case.pods())
    assert pods
    assert {name: found for name, _, spec in pods if (found := violations(spec))} == {}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("hostNetwork", True), ("hostPID", True), ("securityContext.runAsUser", 0), ("securityContext.runAsNonRoot", False),
        ("securityContext.seccompProfile", {"type": "Unconfined"}), ("securityContext.sysctls", [{"name": "kernel.msgmax"}]),
        ("volumes", [{"name": "root", "hostPath": {"path": "/"}}]),
    ],
)  # fmt: skip
def test_the_check_of_pod_security_sees_what_is_forbidden_to_a_pod(
    rendered: dict[str, Rendered], path: str, value: Any
) -> None:
    spec = rendered["minimal"].one("Deployment", "-api")["spec"]["template"]["spec"]
    assert violations(merged(spec, nested(path, value)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("securityContext.privileged", True), ("securityContext.allowPrivilegeEscalation", True), ("securityContext.runAsUser", 0),
        ("securityContext.capabilities", {"drop": ["NET_RAW"]}), ("securityContext.capabilities.add", ["SYS_PTRACE"]),
        ("securityContext.procMount", "Unmasked"), ("ports", [{"containerPort": 1, "hostPort": 1}]),
    ],
)  # fmt: skip
def test_the_check_of_pod_security_sees_what_is_forbidden_to_a_container(
    rendered: dict[str, Rendered], path: str, value: Any
) -> None:
    spec = rendered["minimal"].one("Deployment", "-api")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    for place in ("containers", "initContainers"):
        changed = {**spec, place: [merged(container, nested(path, value))]}
        assert violations(changed)


def test_every_container_is_bounded_and_can_write_nowhere_but_to_tmp(case: Rendered) -> None:
    for name, _, spec in case.pods():
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        for container in containers_of(spec):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
            assert {"requests", "limits"} <= container["resources"].keys(), name
            assert "@sha256:" in container["image"] or not container["image"].endswith((":", ":latest")), name


def test_a_case_renders_the_same_twice_and_across_revisions(helm: Helm, rendered: dict[str, Rendered]) -> None:
    for name, first in rendered.items():
        for revision in (1, 17):
            again = helm.render(values_of(name), revision=revision)
            assert again.manifests == first.manifests


def test_the_name_of_the_migration_changes_with_its_content_alone(helm: Helm) -> None:
    def name(**changes: Any) -> str:
        return str(helm.render(values_of("gitops", changes)).one("Job")["metadata"]["name"])

    assert name() == name(api={"replicas": 7})
    assert (
        len({name(), name(image={"tag": "2"}), name(database={"name": "other"}), name(migrations={"backoffLimit": 9})})
        == 4
    )


@pytest.mark.parametrize("name", list(CASES))
def test_a_case_works_as_a_subchart_with_a_condition(helm: Helm, tmp_path: Path, name: str) -> None:
    parent = _parent(tmp_path)
    own = values_of(name)
    values = {"global": {"imageRegistry": "mirror", "other": 1}, "tenantry": {**own, "enabled": True}}
    found = helm.render(values, chart=parent)
    alone = helm.render(merged(own, {"global": {"imageRegistry": "mirror"}}))
    assert [manifest["kind"] for manifest in found.manifests] == [manifest["kind"] for manifest in alone.manifests]
    images = {container["image"] for _, _, spec in found.pods() for container in containers_of(spec)}
    assert {image.split("/")[0] for image in images} == {"mirror"}
    assert helm.render({"tenantry": {"enabled": False}}, chart=parent).manifests == []


def _parent(directory: Path) -> Path:
    parent = directory / "umbrella"
    shutil.copytree(CHART, parent / "charts" / "tenantry")
    dependency = {"name": "tenantry", "version": "*.*.*", "condition": "tenantry.enabled", "repository": ""}
    chart = {"apiVersion": "v2", "name": "umbrella", "version": "1.0.0", "dependencies": [dependency]}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(chart))
    return parent


def test_names_stay_within_a_dns_label_however_long_the_release_is_called(helm: Helm) -> None:
    values = values_of("everything", {"worker": {"pools": {"fifteen-letters": {}}}})
    found = helm.render(values, name="a" * 53)
    assert [m["metadata"]["name"] for m in found.manifests if len(m["metadata"]["name"]) > 63] == []
    names = [(m["kind"], m["metadata"]["name"]) for m in found.manifests]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("replicaz", 1), ("api.replicaz", 1), ("database.logins.root", {}), ("database.logins.api.pass", "x"), ("worker.pools.default.queues", []),
        ("pod.securityContex", {}), ("api.pod.hostNetwork", True), ("worker.pools.Default", {}), ("worker.pools.sixteen-letters-x", {}),
        ("api.replicas", "2"), ("api.replicas", -1), ("database.port", 0), ("database.sslMode", "prefer"), ("migrations.mode", "init"),
        ("image.digest", "sha256:abc"), ("workflows", "shop"), ("settings.retention", "30d"), ("settings.RETENTION", ["30d"]),
        ("pgbouncer.config.pool_mode", "session"), ("logging.format", "xml"), ("worker.autoscaling.type", "vpa"), ("api.pdb.maxUnavailable", "two"),
        ("observability.prometheusRule.apiErrorRatio", 2), ("pod.extraEnv", [{"name": "A", "value": "b"}]), ("database.name", "a b"),
    ],
)  # fmt: skip
def test_what_is_unknown_or_of_the_wrong_kind_is_refused_by_the_schema(helm: Helm, path: str, value: Any) -> None:
    with pytest.raises(
        ChartError, match=path.rsplit(".", maxsplit=1)[-1].replace("sixteen", "(?:sixteen|maxLength|pools)")
    ):
        helm.render(values_of("minimal", nested(path, value)))
