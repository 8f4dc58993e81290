"""Defines slim PodGroups (``scheduling.x-k8s.io/v1alpha1``), and where an API server has them."""

from typing import Final

import msgspec

from gputile.api.core import ObjectMeta

POD_GROUP_API: Final = "scheduling.x-k8s.io"
POD_GROUP_API_PATH: Final = f"/apis/{POD_GROUP_API}/v1alpha1"  # 404 where no kind of the group is installed
POD_GROUPS_PATH: Final = f"{POD_GROUP_API_PATH}/podgroups"


class PodGroupSpec(msgspec.Struct, rename="camel", gc=False):
    """The part of a PodGroup's spec that says how many pods start together."""

    min_member: int = 0


class PodGroup(msgspec.Struct, rename="camel", gc=False):
    """scheduling.x-k8s.io/v1alpha1 PodGroup."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)
