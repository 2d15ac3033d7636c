"""Helm as a server: reads a request a line, writes an answer a line. Runs in `.venv-helm`, which alone has Helm's library.

Requests: `{op: render | lint | validate, …}`; answers: `{ok: …}` or `{error: text}`.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import helm_python
import kubernetes_validate


def render(chart: str, values: dict[str, Any], **release: Any) -> dict[str, str]:
    """Return the rendered text of each template; `release` is name, namespace, revision and whether it is an upgrade."""
    loaded = helm_python.Chart.load(chart)
    loaded.validate_schema(values)
    return loaded.render(values, **release)


def lint(chart: str, values: dict[str, Any], kube_version: str) -> list[str]:
    """Return what the strict linter warns of or refuses."""
    report = helm_python.lint(chart, values, strict=True, kube_version=kube_version)
    return [message["error"] for message in report["messages"] if message["severity"] > 1] + list(report["errors"])


def validate(manifests: list[dict[str, Any]], versions: list[str]) -> list[str]:
    """Return what is wrong with manifests by the schemas of these Kubernetes minors, and of which kinds there is none."""
    faults = []
    for version in versions:
        for manifest in manifests:
            what = f"{version} {manifest.get('kind')}/{manifest.get('metadata', {}).get('name')}"
            try:
                kubernetes_validate.validate(manifest, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                faults.append(f"{what}: {'/'.join(map(str, error.path))}: {error.message}")
            except kubernetes_validate.SchemaNotFoundError:
                faults.append(f"{what}: no schema")
    return faults


OPERATIONS: dict[str, Callable[..., Any]] = {"render": render, "lint": lint, "validate": validate}


def main() -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": OPERATIONS[request.pop("op")](**request)}
        except helm_python.HelmError as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
