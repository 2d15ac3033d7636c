"""Findings of the audit as SARIF 2.1.0, the form in which code hosts and scanners take results.

A catalog has no files: a result names its object as a logical location.
"""

from collections.abc import Sequence
from importlib.metadata import version as installed_version
from typing import Any

from tenancy.audit import CHECKS, Finding

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
VERSION = "2.1.0"


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return one log of one run, with a rule for every check, whether it found something or not."""
    places = {check.code: index for index, check in enumerate(CHECKS)}
    rules = [
        {
            "id": check.code,
            "shortDescription": {"text": check.title},
            "defaultConfiguration": {"level": check.level},
        }
        for check in CHECKS
    ]
    driver = {"name": "tenantry", "semanticVersion": installed_version("tenantry"), "rules": rules}
    results = [_result(finding, places[finding.code]) for finding in findings]
    return {"$schema": SCHEMA, "version": VERSION, "runs": [{"tool": {"driver": driver}, "results": results}]}


def _result(finding: Finding, rule_index: int) -> dict[str, Any]:
    return {
        "ruleId": finding.code,
        "ruleIndex": rule_index,
        "level": finding.level,
        "message": {"text": f"{finding.object}: {finding.reason}. Fix: {finding.fix}"},
        "locations": [{"logicalLocations": [{"fullyQualifiedName": finding.object}]}],
        "partialFingerprints": {"finding/v1": f"{finding.code} {finding.object}"},
        "properties": {"object": finding.object, "reason": finding.reason, "fix": finding.fix},
    }
