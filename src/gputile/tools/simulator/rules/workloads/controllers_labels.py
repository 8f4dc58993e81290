"""Names the labels that controllers write into the pods that they make, over those of the template.

Source: k8s.io/api (apps/v1, batch/v1, types.go); for Rollouts argo-rollouts (pkg/apis/rollouts/v1alpha1), and for jobs
of Kubeflow its training-operator (pkg/apis/kubeflow.org/v1).
"""

from typing import Final

TEMPLATE_HASH: Final = "pod-template-hash"  # Deployment
REVISION_HASH: Final = "controller-revision-hash"  # StatefulSet, DaemonSet
TEMPLATE_GENERATION: Final = "pod-template-generation"  # DaemonSet
POD_NAME: Final = "statefulset.kubernetes.io/pod-name"
POD_INDEX: Final = "apps.kubernetes.io/pod-index"  # StatefulSet
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"  # Indexed Job: a label, and an annotation
REPLICA_INDEX: Final = "training.kubeflow.org/replica-index"  # PyTorchJob and its like
JOB_NAMES: Final = ("job-name", "batch.kubernetes.io/job-name")
JOB_UIDS: Final = ("controller-uid", "batch.kubernetes.io/controller-uid")
CONTROLLERS_LABELS: Final = frozenset(
    {TEMPLATE_HASH, REVISION_HASH, TEMPLATE_GENERATION, POD_NAME, POD_INDEX, COMPLETION_INDEX, *JOB_NAMES, *JOB_UIDS}
)
# Which of them a kind of workload, in the API server's spelling, has in all of its pods.
OVERWRITTEN: Final = {
    "daemonset": (REVISION_HASH, TEMPLATE_GENERATION),
    "deployment": (TEMPLATE_HASH,),
    "rollout": ("rollouts-pod-template-hash",),
    "statefulset": (REVISION_HASH, POD_NAME, POD_INDEX),
}
