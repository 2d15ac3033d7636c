"""The chart's documents say what is so: the table of values, the schema, the alerts and the examples' commands."""

import json
import re
import tomllib
from typing import Any

import pytest
import yaml

from service.cli.tree import BRANCHES, load
from tests.helm.values_table import README, UndocumentedError, rows, with_table
from tests.support.chart import CASES, CHART, CHECKOUT, Rendered

VALUES = (CHART / "values.yaml").read_text()


def test_the_table_of_values_is_that_of_values_yaml() -> None:
    readme = README.read_text()
    assert with_table(readme, VALUES) == readme, "make chart-docs"
    assert "| `api.replicas` | `2` |" in readme


def test_a_value_without_a_comment_is_found() -> None:
    assert list(rows("a:\n  # -- Text.\n  b: {c: 1}\n")) == [("a.b", '`{"c": 1}`', "Text.")]
    with pytest.raises(UndocumentedError, match=r"a\.c"):
        list(rows("a:\n  # -- Text.\n  b: 1\n  c: 2\n"))


def test_every_value_is_documented() -> None:
    assert len(list(rows(VALUES))) > 150


def test_the_schema_knows_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert _differences(yaml.safe_load(VALUES), schema, schema, "") == {"enabled"}


def _differences(values: dict[str, Any], node: dict[str, Any], schema: dict[str, Any], path: str) -> set[str]:
    if not values:
        # What may stand in it is others' business, or is told elsewhere.
        return set()
    while "$ref" in node:
        target: Any = schema
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        node = target
    if "properties" not in node:
        return set()
    known = node["properties"]
    assert node.get("additionalProperties") is False or path == "global", path
    found = {f"{path}.{name}".lstrip(".") for name in values.keys() ^ known.keys()}
    for name in values.keys() & known.keys():
        if isinstance(values[name], dict):
            found |= _differences(values[name], known[name], schema, f"{path}.{name}".lstrip("."))
    return found


def test_every_alert_has_a_paragraph_and_every_paragraph_an_alert(rendered: dict[str, Rendered]) -> None:
    (group, _) = rendered["everything"].one("PrometheusRule")["spec"]["groups"]
    alerts = {rule["alert"] for rule in group["rules"]} | {"TenantryApiSlow"}
    assert set(re.findall(r"^### (\w+)$", README.read_text(), re.MULTILINE)) == alerts
    for rule in group["rules"]:
        assert rule["annotations"]["runbook_url"] == f"https://runbooks.example.com/tenantry#{rule['alert'].lower()}"
        assert rule["labels"].keys() >= {"severity", "team"}


def test_chart_image_and_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    package = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
    (image,) = re.findall(r"^ARG VERSION=(.+)$", (CHECKOUT / "Dockerfile").read_text(), re.MULTILINE)
    assert (chart["version"], chart["appVersion"], image) == (package, package, package)
    assert f"## {package}" in (CHART / "UPGRADING.md").read_text()


def test_links_of_the_handbook_lead_somewhere() -> None:
    readme = README.read_text()
    headings = {
        re.sub(r"[^\w -]", "", found).strip().lower().replace(" ", "-")
        for found in re.findall(r"^#+ (.+)$", readme, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", readme):
        assert target[1:] in headings if target.startswith("#") else (CHART / target).exists(), target


def test_only_what_the_readme_calls_required_must_be_given() -> None:
    required = {path for path, _, text in rows(VALUES) if text.startswith("Required.")}
    assert required == {"workflows", "database.logins.api.existingSecret"}
    minimal = yaml.safe_load(CASES["minimal"].read_text())
    assert minimal["workflows"]
    assert minimal["database"]["logins"]["api"]["existingSecret"]


def test_commands_of_the_handbook_are_commands() -> None:
    branches = {name: load(name) for name in BRANCHES}
    groups = {name: branch.commands for name, branch in branches.items() if hasattr(branch, "commands")}
    plain = branches.keys() - groups.keys()
    named = re.findall(r"(?<![/-])\btenantry\s+([a-z]+)(?:\s+([a-z]+))?", README.read_text())
    assert len(named) > 15
    assert [found for found in named if found[0] not in plain and found[1] not in groups.get(found[0], {})] == []
