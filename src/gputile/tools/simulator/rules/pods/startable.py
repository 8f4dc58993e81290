"""Checks whether kubelets can start the containers of a pod, as far as the pod itself says.

An API server takes pods of which they cannot. An image's name is read as by github.com/distribution/reference,
``ParseNormalizedNamed``; the rest is pkg/kubelet/kuberuntime and pkg/volume/emptydir of Kubernetes.
"""

import re
from collections.abc import Iterator
from typing import Final

from gputile.api.quantity import parse_quantity
from gputile.api.wording import shown
from gputile.tools.simulator.rules.pods.runtimes import long_words, refused_by_runtimes
from gputile.tools.simulator.rules.pods.volume_modes import is_block, used_otherwise
from gputile.tools.simulator.rules.values.fields import Broken, Json

_KINDS: Final = ("initContainers", "containers")
_HOST_PART: Final = r"[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?"
_DOMAIN: Final = re.compile(rf"({_HOST_PART}(\.{_HOST_PART})*|\[[a-fA-F0-9:]+\])(:[0-9]+)?", re.ASCII)
_PATH_PART: Final = r"[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*"
_REPOSITORY: Final = re.compile(rf"{_PATH_PART}(/{_PATH_PART})*", re.ASCII)
_TAG: Final = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}", re.ASCII)
_DIGEST: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9]*([-_+.][a-zA-Z][a-zA-Z0-9]*)*:[0-9a-fA-F]{32,}", re.ASCII)
_DIGITS: Final = {"sha256": 64, "sha384": 96, "sha512": 128}
_LONGEST_REPOSITORY: Final = 255
_LONGEST_IMAGE: Final = 2_000
_ONLY_DIGITS: Final = re.compile(r"[a-f0-9]{64}", re.ASCII)
_HUGE: Final = "hugepages-"
_NOT_PULLED: Final = "no kubelet can pull it"
_LEAST_MEMORY: Final = 6 << 20  # bytes; runc itself needs as much while it starts a container
_LONGEST_HOSTNAME: Final = 64
_NAMESPACED_SYSCTLS: Final = ("kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.", "net.")
_SAFE_SYSCTLS: Final = (
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range"),
    *("net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time"),
    *("net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes"),
    *("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
)


def unstartable(path: str, spec: Json) -> Iterator[Broken]:
    """Yield what keeps kubelets from ever starting a container of the valid spec at ``path``."""
    for kind in _KINDS:
        for i, container in enumerate(spec.get(kind, ())):
            where, image = f"{path}.{kind}[{i}]", container.get("image", "")
            if image == image.strip() and (why := broken_image(image)):
                yield f"{where}.image", f"Invalid value: {shown(image)}: {_NOT_PULLED}: {why}"
            yield from _root(where, container, spec)
    yield from _other_containers(path, spec)
    yield from refused_by_runtimes(path, spec)
    made = {each["name"]: each["ephemeral"] for each in spec.get("volumes", ()) if "ephemeral" in each}
    blocks = {name: is_block(each.get("volumeClaimTemplate", {}).get("spec")) for name, each in made.items()}
    yield from used_otherwise(path, spec, blocks)
    asked = {name for kind in _KINDS for each in spec.get(kind, ()) for name in _asked(each)}
    for i, volume in enumerate(spec.get("volumes", ())):
        reference = volume.get("image", {}).get("reference", "")
        if reference == reference.strip() and (why := broken_image(reference)):
            yield f"{path}.volumes[{i}].image.reference", f"Invalid value: {shown(reference)}: {_NOT_PULLED}: {why}"
        medium = volume.get("emptyDir", {}).get("medium", "")
        wanted = f"{_HUGE}{medium.partition('-')[2]}"
        if medium.startswith("HugePages") and not any(name.startswith(wanted) for name in asked):
            rule = f"no container asks for {wanted}{'' if wanted != _HUGE else 'SIZE'}, so no kubelet can mount it"
            yield f"{path}.volumes[{i}].emptyDir.medium", f"Invalid value: {shown(medium)}: {rule}"


def doubts(prefix: str, metadata: Json, spec: Json) -> Iterator[str]:
    """Yield sentences on what keeps most kubelets from starting a pod; ``prefix`` stands before its fields."""
    for kind in _KINDS:
        for i, container in enumerate(spec.get(kind, ())):
            amount = container.get("resources", {}).get("limits", {}).get("memory")
            if amount is not None and 0 < parse_quantity(amount) < _LEAST_MEMORY:
                field = f"{prefix}spec.{kind}[{i}].resources.limits.memory"
                yield f"{field}: {amount} is less than 6Mi, and few containers start with that; M is a megabyte, m not"
            for where in long_words(container):
                said = "has more than 128 KiB, and most kernels start no program with that: mount it as a file"
                yield f"{prefix}spec.{kind}[{i}].{where}: {said}"
    for i, each in enumerate(spec.get("securityContext", {}).get("sysctls", ())):
        name = each["name"].replace("/", ".")
        if name not in _SAFE_SYSCTLS:
            own = name.startswith(_NAMESPACED_SYSCTLS)
            why = (
                "only kubelets that allow it (--allowed-unsafe-sysctls) start the pod" if own else "no kubelet sets it"
            )
            yield f"{prefix}spec.securityContext.sysctls[{i}].name: {name}: {why}"
    if spec.get("setHostnameAsFQDN") and spec.get("subdomain"):
        host = spec.get("hostname") or metadata.get("name", "")
        whole = f"{host}.{spec['subdomain']}.{metadata.get('namespace', '')}.svc.cluster.local"
        if len(whole) > _LONGEST_HOSTNAME:
            rule = f"{whole} has more than {_LONGEST_HOSTNAME} characters, so its kubelet does not start the pod"
            yield f"{prefix}spec.setHostnameAsFQDN: {rule}"


def broken_image(image: str) -> str | None:
    """Return why a text is no name of an image, None where it is one."""
    if not image or len(image) > _LONGEST_IMAGE:
        return f"it has more than {_LONGEST_IMAGE:,} characters" if image else None
    named, at, digest = image.partition("@")
    if at and (why := _broken_digest(digest)):
        return why
    before, slash, last = named.rpartition("/")
    last, colon, tag = last.partition(":")
    if colon and not _TAG.fullmatch(tag):
        return f"the tag {shown(tag)} must be letters, digits, '_', '.' and '-'"
    repository = f"{before}{slash}{last}"
    if _ONLY_DIGITS.fullmatch(image):
        return "64 hexadecimal digits are an image's ID"
    first, slash, rest = repository.partition("/")
    if slash and (any(mark in first for mark in ".:") or first == "localhost" or first != first.lower()):
        if not _DOMAIN.fullmatch(first):
            return f"{shown(first)} is no registry"
        repository = rest
    if not _REPOSITORY.fullmatch(repository):
        return f"{shown(repository)} must be small letters, digits, '.', '_', '-' and '/'"
    return f"it has more than {_LONGEST_REPOSITORY} characters" if len(repository) > _LONGEST_REPOSITORY else None


def _broken_digest(digest: str) -> str | None:
    algorithm, _, digits = digest.partition(":")
    if _DIGEST.fullmatch(digest) and len(digits) == _DIGITS.get(algorithm) and digits == digits.lower():
        return None
    return f"the digest {shown(digest)} must be as sha256: and 64 hexadecimal digits"


def _root(path: str, container: Json, spec: Json) -> Iterator[Broken]:
    """Yield that a container is root and must not be."""
    whole, own = spec.get("securityContext", {}), container.get("securityContext", {})
    if own.get("runAsNonRoot", whole.get("runAsNonRoot")) and own.get("runAsUser", whole.get("runAsUser")) == 0:
        rule = "it runs as user 0, which is root: no kubelet starts it"
        yield f"{path}.securityContext.runAsNonRoot", f"Invalid value: true: {rule}"


def _other_containers(path: str, spec: Json) -> Iterator[Broken]:
    """Yield references to the resources of a container that is not there (pkg/api/v1/resource of Kubernetes)."""
    names = {each["name"] for kind in _KINDS for each in spec.get(kind, ())}
    for where, reference in _resource_references(path, spec):
        name = reference.get("containerName", "")
        if name and name not in names:
            rule = "the pod has no such container, so no kubelet finds the amount"
            yield f"{where}.containerName", f"Invalid value: {shown(name)}: {rule}"


def _resource_references(path: str, spec: Json) -> Iterator[tuple[str, Json]]:
    """Yield each ``resourceFieldRef`` of variables and of files, with its place."""
    for kind in _KINDS:
        for i, container in enumerate(spec.get(kind, ())):
            for j, variable in enumerate(container.get("env", ())):
                if (found := variable.get("valueFrom", {}).get("resourceFieldRef")) is not None:
                    yield f"{path}.{kind}[{i}].env[{j}].valueFrom.resourceFieldRef", found
    for i, volume in enumerate(spec.get("volumes", ())):
        parts = [(f"{path}.volumes[{i}]", volume)]
        of_volume = volume.get("projected", {}).get("sources", ())
        parts += [(f"{path}.volumes[{i}].projected.sources[{j}]", part) for j, part in enumerate(of_volume)]
        for where, part in parts:
            for j, item in enumerate(part.get("downwardAPI", {}).get("items", ())):
                if (found := item.get("resourceFieldRef")) is not None:
                    yield f"{where}.downwardAPI.items[{j}].resourceFieldRef", found


def _asked(container: Json) -> set[str]:
    resources = container.get("resources", {})
    return {name for kind in ("limits", "requests") for name in resources.get(kind, {})}
