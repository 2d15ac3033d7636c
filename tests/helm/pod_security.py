"""The restricted level of Kubernetes' Pod Security Standards, as a function of a pod's spec."""

from collections.abc import Iterator
from typing import Any

from tests.support.chart import containers_of

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
SECCOMP = {"RuntimeDefault", "Localhost"}
SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start", "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
}  # fmt: skip


def violations(pod: dict[str, Any]) -> list[str]:
    """Return what the restricted level forbids or misses, empty when the pod may run under it."""
    found = [*_of_pod(pod)]
    for container in containers_of(pod):
        found += [f"{container['name']}: {fault}" for fault in _of_container(container, pod.get("securityContext", {}))]
    return found


def _of_pod(pod: dict[str, Any]) -> Iterator[str]:
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name))
    context = pod.get("securityContext", {})
    yield from (f"sysctl {item['name']}" for item in context.get("sysctls", []) if item["name"] not in SYSCTLS)
    if context.get("runAsUser") == 0:
        yield "runAsUser 0"
    for volume in pod.get("volumes", []):
        if not VOLUMES & volume.keys():
            yield f"volume {volume['name']}"


def _of_container(container: dict[str, Any], of_pod: dict[str, Any]) -> Iterator[str]:
    context = container.get("securityContext", {})
    capabilities = context.get("capabilities", {})
    seccomp = context.get("seccompProfile", of_pod.get("seccompProfile", {})).get("type")
    faults = {
        "privileged": context.get("privileged"),
        "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is not False,
        "runAsNonRoot": context.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is not True,
        "runAsUser 0": context.get("runAsUser") == 0,
        "seccompProfile": seccomp not in SECCOMP,
        "capabilities not dropped": "ALL" not in capabilities.get("drop", []),
        "capabilities added": set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"},
        "procMount": context.get("procMount", "Default") != "Default",
        "hostPort": any(port.get("hostPort") for port in container.get("ports", [])),
    }
    yield from (name for name, is_so in faults.items() if is_so)
