"""The chart as tests see it: rendered, linted and checked by Helm itself, from its library or a binary on the machine."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

import yaml

from tests.support.system import missing

CHECKOUT = Path(__file__).resolve().parents[2]
CHART = CHECKOUT / "helm"
PYTHON = CHECKOUT / ".venv-helm" / "bin" / "python"
RENDERER = CHECKOUT / "tests" / "helm" / "renderer.py"
# The oldest that Chart.yaml allows, one in between, the newest that there are schemas of.
MINORS = ("1.30", "1.34", "1.37")
CASES = {path.stem.removesuffix("-values"): path for path in sorted((CHART / "ci").glob("*-values.yaml"))}
Manifest = dict[str, Any]
Values = Mapping[str, Any]


class ChartError(Exception):
    """Helm refused the values or the chart; the text is Helm's."""


def values_of(case: str, changes: Values | None = None) -> dict[str, Any]:
    """Return the values of a case, with changes merged in as Helm merges a second file."""
    return merged(yaml.safe_load(CASES[case].read_text()), changes or {})


def merged(values: Values, changes: Values) -> dict[str, Any]:
    """Return values overlaid with changes: maps are merged, everything else is replaced."""
    result = deepcopy(dict(values))
    for name, change in changes.items():
        below = result.get(name)
        result[name] = merged(below, change) if isinstance(below, dict) and isinstance(change, dict) else change
    return result


def nested(path: str, value: Any) -> dict[str, Any]:
    """Return `{a: {b: value}}` for `a.b`."""
    for part in reversed(path.split(".")):
        value = {part: value}
    return dict(value)


class Rendered:
    """The manifests of one rendering, hooks and tests included."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = dict(texts)
        self.notes = next((text for path, text in texts.items() if path.endswith("NOTES.txt")), "")
        self.manifests: list[Manifest] = [
            document
            for path, text in sorted(texts.items())
            if not path.endswith("NOTES.txt")
            for document in yaml.safe_load_all(text)
            if document
        ]

    def of_kind(self, kind: str) -> dict[str, Manifest]:
        """Return the manifests of a kind by name."""
        return {found["metadata"]["name"]: found for found in self.manifests if found["kind"] == kind}

    def one(self, kind: str, end: str = "") -> Manifest:
        """Return the only manifest of a kind whose name ends so."""
        (found,) = [manifest for name, manifest in self.of_kind(kind).items() if name.endswith(end)]
        return found

    def pods(self) -> Iterator[tuple[str, Manifest, Manifest]]:
        """Yield each pod template, and each pod: its name, its metadata, its spec."""
        for manifest in self.manifests:
            name = f"{manifest['kind']}/{manifest['metadata']['name']}"
            if manifest["kind"] == "Pod":
                yield name, manifest["metadata"], manifest["spec"]
            elif manifest["kind"] in {"Deployment", "StatefulSet", "DaemonSet", "Job"}:
                template = manifest["spec"]["template"]
                yield name, template["metadata"], template["spec"]


def containers_of(pod: Manifest) -> list[Manifest]:
    """Return all containers of a pod's spec."""
    return [*pod.get("initContainers", []), *pod["containers"], *pod.get("ephemeralContainers", [])]


class Helm:
    """A Helm that answers: the library in a process of its own. Use as a context manager."""

    def __init__(self) -> None:
        if not PYTHON.exists():
            missing("Helm's library (.venv-helm)", "make chart-setup")
        self._process = subprocess.Popen(
            [str(PYTHON), str(RENDERER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def render(
        self, values: Values, *, chart: Path = CHART, name: str = "rel", namespace: str = "ns", revision: int = 1
    ) -> Rendered:
        """Render with these values; ChartError when they are refused."""
        request = {"values": values, "name": name, "namespace": namespace, "revision": revision}
        is_upgrade = revision > 1
        return Rendered(
            self._ask("render", chart=str(chart), **request, is_upgrade=is_upgrade, is_install=not is_upgrade)
        )

    def lint(self, values: Values, kube_version: str) -> list[str]:
        """Return what the strict linter finds."""
        found: list[str] = self._ask("lint", chart=str(CHART), values=values, kube_version=kube_version)
        return found

    def validate(self, manifests: Sequence[Manifest], versions: Sequence[str] = MINORS) -> list[str]:
        """Return what the schemas of these minors find."""
        found: list[str] = self._ask("validate", manifests=list(manifests), versions=list(versions))
        return found

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, operation: str, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": operation, **request}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise ChartError(answer["error"])
        return answer["ok"]


class HelmBinary(Helm):
    """The same with a `helm` on the machine; only notes and schemas still need the library's environment."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def render(
        self, values: Values, *, chart: Path = CHART, name: str = "rel", namespace: str = "ns", revision: int = 1
    ) -> Rendered:
        """Render; a binary tells apart install and upgrade, no further revisions, and its notes are the library's."""
        notes = super().render(values, chart=chart, name=name, namespace=namespace, revision=revision).texts
        upgrade = ["--is-upgrade"] if revision > 1 else []
        text = self._run(values, "template", name, str(chart), "--namespace", namespace, *upgrade)
        texts = {path: text for path, text in notes.items() if path.endswith("NOTES.txt")}
        for part in text.split("---\n# Source: ")[1:]:
            path, _, body = part.partition("\n")
            texts[path] = f"{texts.get(path, '')}---\n{body}"
        return Rendered(texts)

    def lint(self, values: Values, kube_version: str) -> list[str]:
        """Return what the strict linter prints when it fails."""
        try:
            self._run(values, "lint", str(CHART), "--strict", "--kube-version", kube_version)
        except ChartError as error:
            return [str(error)]
        return []

    def _run(self, values: Values, *arguments: str) -> str:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(dict(values), file)
            file.flush()
            command = [self._program, *arguments, "--values", file.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode != 0:
            raise ChartError(done.stderr + done.stdout)
        return done.stdout


def open_helm() -> Helm:
    """Return the machine's Helm, the library where there is no binary."""
    program = shutil.which("helm")
    return HelmBinary(program) if program else Helm()
