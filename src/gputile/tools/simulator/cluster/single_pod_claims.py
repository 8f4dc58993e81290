"""Tells which pods wait for a claim that only one pod at a time can have (ReadWriteOncePod).

kube-scheduler's plugin VolumeRestrictions keeps the others off all nodes as long as one has it. Pods of Jobs and Pods
that are alone may end, and then the next one gets it; those of other workloads wait for ever.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from gputile.api.core import Pod
from gputile.tools.simulator.cluster.made_objects import written_claims
from gputile.tools.simulator.cluster.owners import owner_of
from gputile.tools.simulator.documents.manifests import Manifest, ManifestError
from gputile.tools.simulator.documents.notes import Note

_ONE_POD: Final = "ReadWriteOncePod"
_MAY_END: Final = (("", "Pod"), ("batch", "Job"), ("batch", "CronJob"), ("batch.volcano.sh", "Job"))
_NAMED: Final = 2


def claimed_twice(manifests: Iterable[Manifest], pods: Iterable[Pod]) -> Iterator[ManifestError | Note]:
    """Yield for each such claim among valid ``manifests`` that several ``pods`` have why some of them wait."""
    claims = {place: each for place, each in written_claims(manifests).items() if _is_single(each)}
    users: dict[tuple[str, str], list[Pod]] = {}
    for pod in pods if claims else ():
        sources = (volume.persistent_volume_claim for volume in pod.spec.volumes)
        named = {(pod.metadata.namespace, each.claim_name) for each in sources if each is not None}
        for place in claims.keys() & named:
            if not pod.finished:
                users.setdefault(place, []).append(pod)
    for place, found in users.items():
        lasting = [pod for pod in found if owner_of(pod)[:2] not in _MAY_END]
        if len(found) > 1:
            several = lasting if len(lasting) > 1 else found
            more = f" and {len(several) - _NAMED:,} more" if len(several) > _NAMED else ""
            names = " and ".join(pod.key for pod in several[:_NAMED])
            rule = f"{_ONE_POD}: one pod at a time can have it, and {names}{more} ask for it"
            origin = claims[place].origin
            if several is lasting:
                yield origin.error("spec.accessModes", f"{rule}: all but one wait for ever")
            else:
                yield Note(f"{rule}: the others wait until it has ended, and are placed as if it had", origin)


def _is_single(claim: Manifest) -> bool:
    return _ONE_POD in claim.body.get("spec", {}).get("accessModes", ())
