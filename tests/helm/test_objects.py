"""What the chart's objects say and how they fit together."""

import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from service.environment import password_name
from service.settings import Settings
from tests.support.chart import (
    CASES,
    CHART,
    Helm,
    Manifest,
    Rendered,
    containers_of,
    merged,
    nested,
    values_of,
)

KNOWN = {field.name for field in fields(Settings)}
KNOWN |= {password_name(name) for name in KNOWN if name.endswith("database_url")} | {"api_url", "api_key"}


def env_of(container: Manifest) -> dict[str, str]:
    return {item["name"]: item.get("value", "") for item in container.get("env", [])}


def secrets_of(spec: Manifest) -> set[str]:
    """All Secrets that a pod mounts or reads, pull secrets apart."""
    found = set()
    for volume in spec.get("volumes", []):
        found |= {volume["secret"]["secretName"]} if "secret" in volume else set()
        found |= {
            source["secret"]["name"] for source in volume.get("projected", {}).get("sources", []) if "secret" in source
        }
    for container in containers_of(spec):
        for item in container.get("env", []):
            found |= (
                {item["valueFrom"]["secretKeyRef"]["name"]} if "secretKeyRef" in item.get("valueFrom", {}) else set()
            )
    return found


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def test_the_processes_accept_the_environment_that_they_are_given(case: Rendered, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush")
    url = tmp_path / "url"
    url.write_text("postgresql://u:p@h:5432/d")
    for name, _, spec in case.pods():
        for container in containers_of(spec):
            given = {key: value for key, value in env_of(container).items() if key.startswith("TENANTRY_")}
            assert {key.removeprefix("TENANTRY_").lower().removesuffix("_file") for key in given} <= KNOWN, name
            mounts = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
            for key, value in given.items():
                if key.endswith("_FILE"):
                    assert any(value.startswith(mount) for mount in mounts), (name, key)
                    given[key] = str(url if "URL" in key else secret)
            settings = Settings.from_environment(given)
            for needed in {"api": ["database_url", "workflows"], "worker": ["database_url", "dispatcher_database_url", "workflows"],
                           "migrate": ["direct_database_url"]}.get(container["name"], []):  # fmt: skip
                settings.require(needed)


def test_the_owners_secret_is_in_the_migration_alone_and_every_login_where_it_is_needed(
    rendered: dict[str, Rendered],
) -> None:
    found = {name: secrets_of(spec) for name, _, spec in rendered["everything"].pods()}
    ca = {"postgres-ca", "bank"}
    assert found == {
        "Deployment/rel-tenantry-api": {"tenantry-api", "tenantry-admin", "operator-token", "pgbouncer-tls", "otlp"} | ca,
        "Deployment/rel-tenantry-worker-default": {"tenantry-worker", "tenantry-dispatcher", "pgbouncer-tls", "otlp"} | ca,
        "Deployment/rel-tenantry-worker-heavy": {"tenantry-worker", "tenantry-dispatcher", "pgbouncer-tls", "otlp"} | ca,
        "Deployment/rel-tenantry-pgbouncer": {
            "tenantry-api", "tenantry-worker", "tenantry-dispatcher", "tenantry-admin", "pgbouncer-stats", "pgbouncer-tls",
        } | ca,
        "Job/rel-tenantry-migrate": {"tenantry-owner"} | ca,
        "Pod/rel-tenantry-test": {"smoke-key"},
    }  # fmt: skip


def test_clients_get_the_authority_of_pgbouncer_and_never_its_key(rendered: dict[str, Rendered]) -> None:
    for end in ("-api", "-worker-default"):
        spec = rendered["everything"].one("Deployment", end)["spec"]["template"]["spec"]
        (volume,) = [volume for volume in spec["volumes"] if volume["name"] == "pgbouncer-ca"]
        assert [item["key"] for item in volume["secret"]["items"]] == ["ca.crt"]


def test_no_secret_is_made_and_no_password_is_in_a_manifest(case: Rendered) -> None:
    assert case.of_kind("Secret") == {}
    for _, _, spec in case.pods():
        for container in containers_of(spec):
            assert not [
                name
                for name in env_of(container)
                if name.endswith(("PASSWORD", "TOKEN", "API_KEY")) and env_of(container)[name]
            ]


def test_everybody_but_the_migration_goes_through_pgbouncer(rendered: dict[str, Rendered]) -> None:
    found = rendered["everything"]
    port = found.one("Service", "-pgbouncer")["spec"]["ports"][0]["port"]
    for end, variable in (
        ("-api", "DATABASE_URL"),
        ("-worker-heavy", "DATABASE_URL"),
        ("-worker-heavy", "DISPATCHER_DATABASE_URL"),
    ):
        (container,) = found.one("Deployment", end)["spec"]["template"]["spec"]["containers"]
        assert f"@rel-tenantry-pgbouncer:{port}/shop?sslmode=verify-full" in env_of(container)[f"TENANTRY_{variable}"]
    (migrate,) = found.one("Job")["spec"]["template"]["spec"]["containers"]
    assert env_of(migrate)["TENANTRY_DIRECT_DATABASE_URL_FILE"] == "/etc/tenantry/logins/owner/url"
    (plain,) = rendered["minimal"].one("Job")["spec"]["template"]["spec"]["containers"]
    assert (
        "tenantry_migrator@postgres.databases.svc:5432/tenantry?sslmode=verify-full"
        in env_of(plain)["TENANTRY_DIRECT_DATABASE_URL"]
    )


@pytest.mark.parametrize(("mode", "is_hook"), [("hook", True), ("job", False), ("none", None)])
def test_the_migration_is_a_hook_or_a_job_or_nothing(helm: Helm, mode: str, is_hook: bool | None) -> None:
    found = helm.render(values_of("minimal", nested("migrations.mode", mode)))
    if is_hook is None:
        assert found.of_kind("Job") == {}
        assert "tenantry db migrate" in found.notes
        return
    job = found.one("Job")
    assert (job["metadata"].get("annotations", {}).get("helm.sh/hook") == "pre-install,pre-upgrade") is is_hook
    assert job["spec"]["template"]["spec"].get("serviceAccountName") is None
    assert [
        pod.get("initContainers") for _, _, pod in found.pods() if pod["containers"][0]["name"] in {"api", "worker"}
    ] == [None, None]


def test_replicas_are_left_out_where_an_autoscaler_owns_them(rendered: dict[str, Rendered]) -> None:
    found = rendered["autoscaling"]
    scaled = {hpa["spec"]["scaleTargetRef"]["name"] for hpa in found.of_kind("HorizontalPodAutoscaler").values()}
    scaled |= {one["spec"]["scaleTargetRef"]["name"] for one in found.of_kind("ScaledObject").values()}
    assert scaled == {"rel-tenantry-api", "rel-tenantry-worker-steady", "rel-tenantry-worker-burst"}
    for name, deployment in found.of_kind("Deployment").items():
        assert ("replicas" in deployment["spec"]) is (name not in scaled)


def test_a_pool_that_can_go_to_zero_asks_the_others(rendered: dict[str, Rendered]) -> None:
    def query(found: Rendered) -> str:
        return str(found.one("ScaledObject")["spec"]["triggers"][0]["metadata"]["query"])

    assert query(rendered["autoscaling"]) == 'max(tenantry_queue_served_depth{namespace="ns",tenantry_pool="burst"})'
    assert query(rendered["everything"]) == 'max(tenantry_queue_depth{namespace="ns"})'


def test_pools_overlay_what_all_begin_with(rendered: dict[str, Rendered]) -> None:
    found = rendered["everything"]
    heavy, plain = (found.one("Deployment", end)["spec"]["template"]["spec"] for end in ("-heavy", "-default"))
    assert (heavy["terminationGracePeriodSeconds"], plain["terminationGracePeriodSeconds"]) == (660, 60)
    of_heavy, of_plain = (env_of(spec["containers"][0]) for spec in (heavy, plain))
    assert (of_heavy["TENANTRY_SHUTDOWN_GRACE"], of_plain["TENANTRY_SHUTDOWN_GRACE"]) == ("600s", "30s")
    assert (of_heavy["TENANTRY_JOB_ABSOLUTE_TIMEOUT"], "TENANTRY_JOB_ABSOLUTE_TIMEOUT" in of_plain) == ("12h", False)
    assert of_plain["TENANTRY_MAX_PAYLOAD_BYTES"] == "1048576"
    assert heavy["nodeSelector"] == {"disk": "ssd", "gpu": "true"}


def test_selectors_and_ports_meet_what_they_mean(case: Rendered) -> None:
    pods = [(metadata["labels"], spec) for _, metadata, spec in case.pods()]
    for service in case.of_kind("Service").values():
        (spec,) = [spec for labels, spec in pods if selects(service["spec"]["selector"], labels)]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= _ports(spec)
    deployments = [one["spec"] for one in case.of_kind("Deployment").values()]
    for one in deployments:
        mine = [labels for labels, _ in pods if selects(one["selector"]["matchLabels"], labels)]
        assert mine == [one["template"]["metadata"]["labels"]]
    for budget in case.of_kind("PodDisruptionBudget").values():
        assert len([True for labels, _ in pods if selects(budget["spec"]["selector"]["matchLabels"], labels)]) == 1
        assert len({"minAvailable", "maxUnavailable"} & budget["spec"].keys()) == 1
    for kind, key in (("ServiceMonitor", "endpoints"), ("PodMonitor", "podMetricsEndpoints")):
        for monitor in case.of_kind(kind).values():
            (port,) = {endpoint["port"] for endpoint in monitor["spec"][key]}
            found = [spec for labels, spec in pods if selects(monitor["spec"]["selector"]["matchLabels"], labels)]
            assert found
            assert all(port in _ports(spec) for spec in found)


def test_network_policies_cover_every_pod_and_let_each_talk_with_those_it_must(case: Rendered) -> None:
    policies = [policy["spec"] for policy in case.of_kind("NetworkPolicy").values()]
    if not policies:
        return
    pods = {name: (metadata["labels"], spec) for name, metadata, spec in case.pods()}
    for labels, _ in pods.values():
        assert len([True for one in policies if selects(one["podSelector"]["matchLabels"], labels)]) == 1
    for policy in policies:
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        own = [spec for labels, spec in pods.values() if selects(policy["podSelector"]["matchLabels"], labels)]
        for rule in policy["ingress"]:
            assert all({port["port"] for port in rule["ports"]} <= _ports(spec) for spec in own)
        for rule in policy["egress"]:
            for peer in rule.get("to", []):
                wanted = peer.get("podSelector", {}).get("matchLabels")
                found = [spec for labels, spec in pods.values() if wanted and selects(wanted, labels)]
                assert not wanted or found
                assert all({port["port"] for port in rule["ports"]} <= _ports(spec) for spec in found)


def _ports(spec: Manifest) -> set[str]:
    return {port["name"] for container in spec["containers"] for port in container.get("ports", [])}


@pytest.mark.parametrize(
    ("endpoint", "protocol", "port"),
    [
        ("http://otel:4318", "http/protobuf", 4318),
        ("http://otel:4317", "grpc", 4317),
        ("http://otel", "http/protobuf", 80),
        ("https://otel", "http/protobuf", 443),
        # Without a port gRPC takes this one for every scheme.
        ("http://otel", "grpc", 443),
    ],
)
def test_telemetry_leaves_as_it_is_told_and_the_policy_lets_it(
    helm: Helm, endpoint: str, protocol: str, port: int
) -> None:
    otlp = {"otlp": {"endpoint": endpoint, "protocol": protocol}}
    found = helm.render(values_of("everything", {"observability": otlp}))
    for component in ("api", "worker"):
        environments = [
            env_of(container)
            for _, _, spec in found.pods()
            for container in spec["containers"]
            if container["name"] == component
        ]
        assert environments
        assert {one["OTEL_EXPORTER_OTLP_PROTOCOL"] for one in environments} == {protocol}
    policies = [
        policy["spec"]
        for policy in found.of_kind("NetworkPolicy").values()
        if policy["spec"]["podSelector"]["matchLabels"].get("app.kubernetes.io/component") in {"api", "worker"}
    ]
    assert policies
    for policy in policies:
        ports = [rule.get("ports") for rule in policy["egress"]]
        assert [{"port": port, "protocol": "TCP"}] in ports


def test_a_policy_of_the_migration_is_there_before_its_job(rendered: dict[str, Rendered]) -> None:
    found = rendered["everything"]
    weights = [
        int(one["metadata"]["annotations"]["helm.sh/hook-weight"])
        for one in (found.one("NetworkPolicy", "-migrate"), found.one("Job"))
    ]
    assert weights[0] < weights[1]


def test_probes_ask_what_they_mean(case: Rendered) -> None:
    for name, _, spec in case.pods():
        for container in spec["containers"]:
            if container["name"] in {"api", "worker"}:
                paths = {
                    probe: container[f"{probe}Probe"]["httpGet"]["path"]
                    for probe in ("startup", "liveness", "readiness")
                }
                assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}, name
                # The gate gives itself three seconds, a worker's loop may be held for some.
                assert container["readinessProbe"]["timeoutSeconds"] > 3
            if container["name"] == "pgbouncer":
                assert "livenessProbe" not in container


def test_pgbouncer_restarts_when_its_configuration_changes_and_only_then(helm: Helm) -> None:
    def template(**changes: Any) -> Manifest:
        found: Manifest = helm.render(values_of("minimal", changes)).one("Deployment", "-pgbouncer")["spec"]["template"]
        return found

    assert template() == template(api={"replicas": 9})
    assert template() != template(pgbouncer={"defaultPoolSize": 7})


@pytest.mark.parametrize("number", [0, 1, 3])
def test_every_dashboard_there_is_becomes_a_config_map(helm: Helm, tmp_path: Path, number: int) -> None:
    chart = tmp_path / "tenantry"
    shutil.copytree(CHART, chart, ignore=shutil.ignore_patterns("dashboards"))
    written = {f"Board {one}.json": {"title": f"Board {one}", "legendFormat": "{{ pod }}"} for one in range(number)}
    (chart / "dashboards").mkdir()
    (chart / "dashboards" / "README.md").write_text("not one")
    for name, board in written.items():
        (chart / "dashboards" / name).write_text(json.dumps(board, indent=2) + "\n")
    values = values_of("minimal", nested("observability.dashboards", {"enabled": True, "namespace": "grafana"}))
    found = [
        one for name, one in helm.render(values, chart=chart).of_kind("ConfigMap").items() if "-dashboard-" in name
    ]
    assert {name: json.loads(text) for one in found for name, text in one["data"].items()} == written
    for one in found:
        assert one["metadata"]["namespace"] == "grafana"
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert one["metadata"]["annotations"] == {"grafana_folder": "Tenantry"}


def test_the_dashboards_of_the_chart_fit_into_config_maps(helm: Helm) -> None:
    found = helm.render(values_of("minimal", nested("observability.dashboards.enabled", True)))
    maps = [one for name, one in found.of_kind("ConfigMap").items() if "-dashboard-" in name]
    assert len(maps) == len(list((CHART / "dashboards").glob("*.json")))
    for one in maps:
        assert len(json.dumps(one)) < 900_000
        assert "${DS_" not in json.dumps(one)
        assert helm.validate([one]) == []


def test_the_test_of_a_release_runs_commands_that_there_are(rendered: dict[str, Rendered]) -> None:
    pod = rendered["everything"].one("Pod")["spec"]
    assert pod["initContainers"][0]["args"][:2] == ["wait", "--timeout"]
    assert pod["containers"][0]["args"] == ["run", "start", "smoke", "--input", '{"a":1}', "--watch"]
    assert rendered["minimal"].one("Pod")["spec"]["containers"][0]["args"][0] == "wait"


@pytest.mark.parametrize("name", list(CASES))
def test_notes_tell_the_next_command_and_what_to_mind(rendered: dict[str, Rendered], name: str) -> None:
    notes = rendered[name].notes
    assert "tenantry tenant create" in notes
    warnings = {line.split(":")[1].split()[0] for line in notes.splitlines() if line.startswith("WARNING")}
    values = merged({"networkPolicy": {"enabled": False}, "worker": {"enabled": True}}, values_of(name))
    assert ("networkPolicy.enabled" in warnings) is not values["networkPolicy"]["enabled"]
    assert ("there are no workers" in notes) is not values["worker"]["enabled"]
