"""The table of values in the chart's README, made from the comments of values.yaml: `make chart-docs` writes it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "helm"
README = CHART / "README.md"
BEGIN = "<!-- values: written by `make chart-docs` from values.yaml -->"
END = "<!-- end of values -->"
MARK = "# -- "
LONGEST_DEFAULT = 60


class UndocumentedError(Exception):
    """A value has no comment; the text names it."""


def rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, default and text of each value: what has a comment is one value, whatever lies below it.

    Raises:
        UndocumentedError: a value has no comment, and none above it has one.
    """
    document = yaml.compose(text)
    assert isinstance(document, yaml.MappingNode)
    yield from _below(document, "", text.splitlines())


def _below(node: yaml.MappingNode, path: str, lines: list[str]) -> Iterator[tuple[str, str, str]]:
    for key, value in node.value:
        name = f"{path}.{key.value}".lstrip(".")
        comment = _comment(lines, key.start_mark.line)
        if comment is not None:
            yield name, _default(value), comment
        elif isinstance(value, yaml.MappingNode) and value.value:
            yield from _below(value, name, lines)
        elif name != "worker.pools":
            raise UndocumentedError(name)


def _comment(lines: list[str], line: int) -> str | None:
    above = lines[line - 1].strip() if line else ""
    return above.removeprefix(MARK) if above.startswith(MARK) else None


def _default(node: yaml.Node) -> str:
    value: Any = yaml.safe_load(yaml.serialize(node))
    text = json.dumps(value, ensure_ascii=False)
    return f"`{text}`" if len(text) <= LONGEST_DEFAULT else "see values.yaml"


def table(text: str) -> str:
    """Return the table as Markdown."""
    lines = ["| value | default | meaning |", "|---|---|---|"]
    lines += [f"| `{path}` | {default} | {meaning.replace('|', '/')} |" for path, default, meaning in rows(text)]
    return "\n".join(lines)


def with_table(readme: str, values: str) -> str:
    """Return the README with the table of these values between its marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(values)}\n\n{END}{after}"


def main() -> None:
    """Write the table into the README."""
    text = with_table(README.read_text(encoding="utf-8"), (CHART / "values.yaml").read_text(encoding="utf-8"))
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
