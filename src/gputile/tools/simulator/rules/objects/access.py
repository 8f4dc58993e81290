"""Checks roles and bindings as the API server does (k8s.io/kubernetes, pkg/apis/rbac/validation)."""

from collections.abc import Iterator
from typing import Final

from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.rules.values.names import broken_subdomain
from gputile.tools.simulator.rules.values.numbers import one_of

_GROUP: Final = "rbac.authorization.k8s.io"


def broken_role(body: Json) -> Iterator[Broken]:
    """Yield what is wrong with a Role."""
    yield from _rules(body, of_namespace=True)


def broken_cluster_role(body: Json) -> Iterator[Broken]:
    """Yield what is wrong with a ClusterRole."""
    yield from _rules(body, of_namespace=False)
    if "aggregationRule" in body and not body["aggregationRule"].get("clusterRoleSelectors"):
        yield "aggregationRule.clusterRoleSelectors", "Required value: at least one selector"


def broken_role_binding(body: Json) -> Iterator[Broken]:
    """Yield what is wrong with a RoleBinding."""
    yield from _binding(body, ("ClusterRole", "Role"), of_namespace=True)


def broken_cluster_role_binding(body: Json) -> Iterator[Broken]:
    """Yield what is wrong with a ClusterRoleBinding."""
    yield from _binding(body, ("ClusterRole",), of_namespace=False)


def _rules(body: Json, *, of_namespace: bool) -> Iterator[Broken]:
    for i, rule in enumerate(body.get("rules", ())):
        path = f"rules[{i}]"
        if rule.get("nonResourceURLs"):
            if of_namespace:
                yield f"{path}.nonResourceURLs", "Invalid value: a Role cannot apply to URLs that are no resources"
            if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
                yield f"{path}.nonResourceURLs", "Invalid value: a rule is for resources or for other URLs"
            continue
        for field in ("apiGroups", "resources"):
            if not rule.get(field):
                yield f"{path}.{field}", "Required value: a rule for resources names at least one"


def _binding(body: Json, kinds: tuple[str, ...], *, of_namespace: bool) -> Iterator[Broken]:
    role = body["roleRef"]
    yield from one_of("roleRef.apiGroup", role.get("apiGroup") or _GROUP, (_GROUP,))
    yield from one_of("roleRef.kind", role["kind"], kinds)
    for i, subject in enumerate(body.get("subjects", ())):
        yield from _subject(f"subjects[{i}]", subject, of_namespace=of_namespace)


def _subject(path: str, subject: Json, *, of_namespace: bool) -> Iterator[Broken]:
    kind, group = subject["kind"], subject.get("apiGroup", "")
    if kind == "ServiceAccount":
        if why := broken_subdomain(subject["name"]):
            yield f"{path}.name", why
        if group:
            yield from one_of(f"{path}.apiGroup", group, ("",))
        if not of_namespace and not subject.get("namespace"):
            yield f"{path}.namespace", "Required value"
    elif kind in ("Group", "User"):
        yield from one_of(f"{path}.apiGroup", group or _GROUP, (_GROUP,))
    else:
        yield from one_of(f"{path}.kind", kind, ("Group", "ServiceAccount", "User"))
