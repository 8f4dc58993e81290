"""Says of files that are built into manifests first, by kustomize or helm, how that is done."""

from pathlib import PurePath
from types import MappingProxyType
from typing import Final

KUSTOMIZE_GROUP: Final = "kustomize.config.k8s.io"
BUILT_BY_KUSTOMIZE: Final = "kustomize builds manifests of it: kustomize build DIR | gputile simulate -f -"
_BUILT_BY_HELM: Final = "helm builds manifests of its chart: helm template CHART | gputile simulate -f -"
_REMEDY: Final = MappingProxyType(
    {
        "kustomization.yaml": BUILT_BY_KUSTOMIZE,
        "kustomization.yml": BUILT_BY_KUSTOMIZE,
        "Chart.yaml": _BUILT_BY_HELM,
        "values.yaml": _BUILT_BY_HELM,
    }
)


def built_first(file: str) -> str:
    """Return "; ..." with what builds manifests of a file of this name, or "" where its name says nothing."""
    remedy = _REMEDY.get(PurePath(file).name)
    return f"; {remedy}" if remedy else ""
