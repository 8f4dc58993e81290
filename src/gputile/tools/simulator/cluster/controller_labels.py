"""Adds the labels and annotations that Kubernetes' controllers give to the pods that they make.

Affinities and topology spread refer to them, so a rule on a Job's name or a set's index means the same here.
Source: k8s.io/api (apps/v1, batch/v1, types.go) for the names; registry/batch/job/strategy.go, controller/job,
controller/statefulset, controller/daemon and controller/deployment of k8s.io/kubernetes for who sets them.
"""

from collections.abc import Mapping

import msgspec

from gputile.api.core import ObjectMeta, Pod
from gputile.tools.simulator.documents.generated_names import make_uid, revision
from gputile.tools.simulator.rules.workloads.controllers_labels import (
    JOB_NAMES,
    JOB_UIDS,
    REVISION_HASH,
    TEMPLATE_GENERATION,
    TEMPLATE_HASH,
)


def common_labels(kind: str, owner: ObjectMeta, template: Pod, manual_selector: bool) -> dict[str, str]:
    """Return the labels of every pod of a workload: those of its template, and those of its controller.

    A Job that selects its pods by hand (``manual_selector``) gives them no labels of its own. A CronJob's pods have
    those of the Job that it makes.
    """
    labels = dict(template.metadata.labels)
    digest = revision(msgspec.json.encode(template))
    if kind == "Deployment":
        labels[TEMPLATE_HASH] = digest
    elif kind == "StatefulSet":
        labels[REVISION_HASH] = f"{owner.name}-{digest}"
    elif kind == "DaemonSet":
        labels |= {REVISION_HASH: digest, TEMPLATE_GENERATION: "1"}
    elif kind == "Job" and not manual_selector:
        return _of_job(owner.name, owner.uid, labels)
    elif kind == "CronJob" and not manual_selector:
        name = f"{owner.name}-{int(digest.encode().hex(), 16) % 10**8:08}"  # a cluster writes the minutes since 1970
        return _of_job(name, make_uid("Job", owner.namespace, name), labels)
    return labels


def _of_job(name: str, uid: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return a Job's labels; the labels of its template take precedence."""
    return dict.fromkeys(JOB_NAMES, name) | dict.fromkeys(JOB_UIDS, uid) | dict(labels)
