"""Defines the slim volumes of pods that two pods of a node cannot always share."""

import msgspec

from gputile.api.conversion import WireObject


class GCEDisk(WireObject):
    """core/v1 GCEPersistentDiskVolumeSource."""

    pd_name: str = ""
    read_only: bool = False


class AWSDisk(WireObject):
    """core/v1 AWSElasticBlockStoreVolumeSource."""

    volume_id: str = msgspec.field(default="", name="volumeID")


class ISCSIDisk(WireObject):
    """core/v1 ISCSIVolumeSource."""

    iqn: str = ""
    read_only: bool = False


class RBDDisk(WireObject):
    """core/v1 RBDVolumeSource."""

    monitors: tuple[str, ...] = ()
    image: str = ""
    pool: str = "rbd"
    read_only: bool = False


class NamedSource(WireObject):
    """A source of a core/v1 Volume, of which only matters that it is there."""


class ClaimSource(WireObject):
    """core/v1 PersistentVolumeClaimVolumeSource: the claim that it names."""

    claim_name: str = ""


class DiskVolume(WireObject):
    """core/v1 Volume: the sources that two pods of a node cannot always share."""

    gce_persistent_disk: GCEDisk | None = None
    aws_elastic_block_store: AWSDisk | None = None
    iscsi: ISCSIDisk | None = None
    rbd: RBDDisk | None = None
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: NamedSource | None = None
    csi: NamedSource | None = None

    @property
    def is_disk(self) -> bool:
        """Whether it has a source that names a disk."""
        sources = (self.gce_persistent_disk, self.aws_elastic_block_store, self.iscsi, self.rbd)
        return any(source is not None for source in sources)

    @property
    def is_claim(self) -> bool:
        """Whether kube-scheduler looks at a volume, or at how many the node takes."""
        return any(source is not None for source in (self.persistent_volume_claim, self.ephemeral, self.csi))
