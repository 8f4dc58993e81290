"""Pods as the API server sends them, and the questions about them."""

import copy
import json
from typing import Any

import msgspec

from gputile.api.config.v1alpha1 import AdmissionConfiguration
from gputile.api.webhooks import AdmissionRequest
from gputile.core.admission.legacy_forms import apply_patch, encode_patch
from gputile.core.admission.review import AdmissionPolicy, Verdict, mutate, validate

USER = "system:serviceaccount:team:author"
AGENT = "system:serviceaccount:gputile:gputile-agent"
POLICY = AdmissionPolicy(unit_mib=128, trusted=frozenset(AdmissionConfiguration().trusted_users))

Json = dict[str, Any]


def pod(limits: Json | None = None, *, container: Json | None = None, meta: Json | None = None, **spec: Any) -> Json:
    """Return a pod of one container; ``container`` and ``meta`` are added to those."""
    resources: Json = {"resources": {"limits": limits, "requests": limits}} if limits else {}
    main = {"name": "main", "image": "x", **resources, **(container or {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team", **(meta or {})},
        "spec": {"containers": [main], **spec},
    }


def request(
    body: Any, old: Any = None, *, user: str = USER, sub: str = "", kind: str = "Pod", groups: tuple[str, ...] = ()
) -> AdmissionRequest:
    """Return the question about ``body``; with ``old`` it is a change."""
    question = {
        "uid": "u",
        "kind": {"group": "", "version": "v1", "kind": kind},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "subResource": sub,
        "namespace": "team",
        "operation": "UPDATE" if old is not None else "CREATE",
        "userInfo": {"username": user, "groups": list(groups)},
        "object": body,
        "oldObject": old,
    }
    return msgspec.json.decode(json.dumps(question), type=AdmissionRequest)


def mutated(body: Json, policy: AdmissionPolicy = POLICY) -> Json:
    """Return the pod as it is stored, through the very bytes of the patch; it may pass again unchanged."""
    verdict = mutate(request(body), policy)
    assert not verdict.refusals, verdict.refusals
    assert json.loads(encode_patch(verdict.operations)) is not None
    stored: Json = apply_patch(verdict.operations, copy.deepcopy(body))
    assert mutate(request(stored), policy).operations == ()
    return stored


def broken(body: Json, policy: AdmissionPolicy = POLICY, **asked: Any) -> list[str]:
    """Return the names of the rules that a new pod breaks; both webhooks must agree, where both judge."""
    return _rules(mutate(request(body, **asked), policy))


def broken_change(body: Json, old: Json, policy: AdmissionPolicy = POLICY, **asked: Any) -> list[str]:
    """Return the names of the rules that a change breaks."""
    return _rules(validate(request(body, old, **asked), policy))


def _rules(verdict: Verdict) -> list[str]:
    return [str(refusal.rule) for refusal in verdict.refusals]
