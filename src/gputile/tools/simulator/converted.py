"""Converts manifests for HAMi, KAI, Koordinator, Run:ai, Volcano and time-slicing.

Fields that the module ``foreign_words`` recognizes are converted in the pods of any kind of object.
A field with an uncertain meaning is not changed, and a message says what to do by hand. Unrelated
fields are never changed.
"""

import copy
import math
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from gputile.api.conversion import ConversionError, convert
from gputile.api.core import Pod
from gputile.api.quantity import QuantityError, parse_quantity
from gputile.api.well_known import (
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    GPU_CORE,
    GPU_COUNT_LABEL,
    GPU_MEMORY,
    GPU_RESOURCES,
    WHOLE_GPU,
)
from gputile.api.wording import kind_of
from gputile.core.admission.completion import DEFAULT_SCHEDULER
from gputile.core.devices.inventory import MOST_MIB
from gputile.core.devices.request import MOST_PERCENT, PERCENT_STEP, RequestError, parse_request
from gputile.tools.simulator.foreign_words import (
    FOREIGN_RESOURCES,
    KAI_FRACTION,
    KAI_MEMORY,
    ForeignAmount,
    foreign_gang,
    foreign_notes,
    foreign_requests,
)
from gputile.tools.simulator.manifests import Manifest

Object = dict[str, Any]
_SCHEDULERS: Final = (
    "hami-scheduler",
    "kai-scheduler",
    "koord-scheduler",
    "runai-scheduler",
    "volcano",
)
_VOLCANO: Final = "batch.volcano.sh"
# Schedulers that start the pods of a custom workload together by default.
_GANG_MAKERS: Final = ("kai-scheduler", "runai-scheduler")
_OWN_GROUPS: Final = ("", "apps", "batch")
_ALL: Final = 100  # percent of a GPU
_TOGETHER: Final = ("koordinator.sh/gpu.shared", "koordinator.sh/gpu-shared")
_MEMORY_UNKNOWN: Final = "; or state the memory of the whole GPU with --gpu-memory"
# By default, KAI_FRACTION and KAI_MEMORY request a part of one GPU for the first container. These
# annotations change that.
_KAI_MODIFIERS: Final = (
    "gpu-fraction-num-devices",
    "gpu-fraction-container-name",
    "gpu-fraction.limit",
    "gpu-memory.limit",
)


@dataclass(slots=True)
class Converted:
    """A converted object. ``notes`` are sentences on what must be done by hand."""

    body: Object
    changed: bool = False
    notes: list[str] = field(default_factory=list)


def converted(manifest: Manifest, unit_mib: int, gpu_mib: int | None) -> Converted:
    """Convert an object for gputile.

    Fractions of a GPU are converted only if the GPU's memory ``gpu_mib``, in MiB, is known.

    Raises:
        ManifestError: the value of a field is not a mapping, but should be.
    """
    result = Converted(copy.deepcopy(manifest.body))
    _Conversion(result, manifest, unit_mib, gpu_mib).walk(result.body, "", {})
    return result


@dataclass(frozen=True, slots=True)
class _Amounts:
    """A container's request for GPUs."""

    gpus: int
    mib: int = 0  # memory on each GPU, or 0 for whole GPUs
    percent: int = 0  # compute of each GPU

    def limits(self, unit_mib: int) -> dict[str, int]:
        if not self.mib:
            return {WHOLE_GPU: self.gpus}
        limits = {GPU_MEMORY: math.ceil(self.mib / unit_mib) * self.gpus}
        if self.percent:
            # The amount is per GPU, as in HAMi.
            percent = min(math.ceil(self.percent / PERCENT_STEP) * PERCENT_STEP, MOST_PERCENT)
            limits[GPU_CORE] = percent * self.gpus
        return limits


@dataclass(frozen=True, slots=True)
class _Conversion:
    result: Converted
    manifest: Manifest
    unit_mib: int
    gpu_mib: int | None

    def walk(self, value: Any, path: str, parent: Object) -> None:
        """Convert the pods and containers in ``value``.

        ``path`` is the path of ``value`` in the object. ``parent`` is the mapping around ``value``.
        """
        if isinstance(value, list):
            for number, item in enumerate(value):
                self.walk(item, f"{path}[{number}]", parent)
        elif isinstance(value, dict):
            containers = _containers(value)
            if containers:
                template = parent if path.endswith("spec") else None
                self._convert_pod(
                    value, containers, template, path.removesuffix("spec").removesuffix(".")
                )
            elif isinstance(value.get("resources"), dict) and "containers" not in value:
                self._convert_pod(parent, [("", value)], None, path)
            if not _containers(value.get("spec")):
                self._report_annotations(path, value.get("metadata"))
            for key, item in list(value.items()):
                if key not in ("containers", "initContainers", "resources"):
                    self.walk(item, f"{path}.{key}" if path else key, value)

    def _convert_pod(
        self, spec: Object, containers: list[tuple[str, Object]], template: Object | None, path: str
    ) -> None:
        """Convert a pod. ``template`` is the mapping with the pod's metadata, if there is one."""
        before = f"{path}." if path else ""
        for name, container in containers:
            where = f"{before}spec.{name}" if name else path
            for each in ("resources", "resources.limits", "resources.requests"):
                self._check(_at(container, each), f"{where}.{each}")
        metadata = self._metadata(template, before)
        annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
        found = {
            number: amounts
            for number, (_, container) in enumerate(containers)
            if (amounts := self._request(container)) is not None
        }
        counts = {amounts.gpus for amounts in found.values() if amounts.mib}
        mixed = len(counts) > 1 or (template is None and counts - {1})
        if mixed:
            text = (
                f"its containers ask for shares of different numbers of GPUs: write "
                f"{GPU_COUNT_LABEL} by hand"
            )
            self.result.notes.append(f"{path or 'spec'}: {text}")
        for number, amounts in found.items():
            if not mixed:
                self._replace_resources(containers[number][1], amounts)
        if counts - {1} and not mixed and template is not None:
            template.setdefault("metadata", {})["labels"] = labels = {
                **labels,
                GPU_COUNT_LABEL: str(counts.pop()),
            }
        if self._convert_annotations(containers, annotations) or (found and not mixed):
            self._report_refusal(containers, {"annotations": annotations, "labels": labels}, path)
            if "annotations" in metadata and not annotations:
                del metadata["annotations"]
        asks = any(_asks_gputile(each) for _, each in containers)
        if template is not None and template is not self.result.body:
            self._label_gang(template, labels, asks and spec.get("schedulerName") in _GANG_MAKERS)
        self._report_fields(path, metadata, [each for _, each in containers])
        if asks:
            self._remove_scheduler(spec)

    def _report_refusal(
        self, containers: list[tuple[str, Object]], metadata: Object, path: str
    ) -> None:
        """Report the reason if admission would refuse the converted pod."""
        init = [each for name, each in containers if name.startswith("init")]
        apps = [each for name, each in containers if not name.startswith("init")]
        try:
            pod = convert(
                {"metadata": metadata, "spec": {"initContainers": init, "containers": apps}}, Pod
            )
            parse_request(pod, self.unit_mib)
        except (ConversionError, RequestError) as error:
            self.result.notes.append(
                f"{path or 'spec'}: converted, but admission refuses it: {error}"
            )

    def _report_annotations(self, path: str, metadata: Any) -> None:
        """Report GPU requests in annotations if no pod spec belongs to ``metadata``."""
        if isinstance(metadata, dict) and isinstance(metadata.get("annotations"), dict):
            self._report_fields(path, metadata, [])

    def _report_fields(self, path: str, metadata: Object, containers: list[Object]) -> None:
        pod = {"metadata": metadata, "spec": {"containers": containers}}
        modifiers = [name for name in _KAI_MODIFIERS if name in (metadata.get("annotations") or {})]
        for where, rule in foreign_requests(path, pod):
            remedy = _MEMORY_UNKNOWN if KAI_FRACTION in where and not self.gpu_mib else ""
            if modifiers:
                remedy = (
                    f"; convert {' and '.join(modifiers)} by hand, and write the label "
                    f"{GPU_COUNT_LABEL} for several GPUs"
                )
            self.result.notes.append(f"{where} {rule}{remedy}")
        for text in foreign_notes(path, pod, self.unit_mib):
            unknown = not self.gpu_mib and ForeignAmount.PERCENT_OF_MEMORY in text
            self.result.notes.append(text + (_MEMORY_UNKNOWN if unknown else ""))

    def _request(self, container: Object) -> _Amounts | None:
        """Return what a container requests from another system, or None if that is uncertain."""
        bounds = {**_bound(container, "requests"), **_bound(container, "limits")}
        amounts: dict[ForeignAmount, int] = {}
        try:
            for name, amount in bounds.items():
                if name in FOREIGN_RESOURCES:
                    amounts[FOREIGN_RESOURCES[name]] = int(parse_quantity(amount))
            gpus = amounts.get(ForeignAmount.GPUS) or int(parse_quantity(bounds.get(WHOLE_GPU, 1)))
        except QuantityError:
            return None
        mib = amounts.get(ForeignAmount.MIB, 0)
        # Koordinator's percentages are of all GPUs together.
        together = max(gpus, 1) if any(name in bounds for name in _TOGETHER) else 1
        part = amounts.get(ForeignAmount.PERCENT_OF_MEMORY, 0)
        if not mib and part < _ALL * together and self.gpu_mib:
            mib = self.gpu_mib * part // (_ALL * together)
        if amounts.keys() == {ForeignAmount.GPUS} or part == _ALL * together:
            return _Amounts(gpus)
        percent = -(-amounts.get(ForeignAmount.PERCENT_OF_COMPUTE, 0) // together)
        return _Amounts(gpus, mib, percent) if mib and gpus > 0 else None

    def _replace_resources(self, container: Object, amounts: _Amounts) -> None:
        """Replace a container's resources for another system with ``amounts``."""
        replaced = {*FOREIGN_RESOURCES, WHOLE_GPU}
        for kind in ("limits", "requests"):
            if bound := _bound(container, kind):
                new: Object = {}
                for name, amount in bound.items():
                    new |= amounts.limits(self.unit_mib) if name in replaced else {name: amount}
                container["resources"][kind] = new
        self.result.changed = True

    def _convert_annotations(
        self, containers: list[tuple[str, Object]], annotations: Object
    ) -> bool:
        """Convert an annotation of KAI or Run:ai to a limit of the first container.

        Return whether an annotation was converted.
        """
        apps = [each for name, each in containers if name.startswith("containers")]
        modified = any(name in annotations for name in _KAI_MODIFIERS)
        if not apps or modified or any(_asks_gputile(each) for _, each in containers):
            return False
        try:
            mib = Decimal(str(annotations.get(KAI_MEMORY, 0)))
            if not mib and self.gpu_mib:
                mib = Decimal(str(annotations.get(KAI_FRACTION, 0))) * self.gpu_mib
            if not 1 <= mib <= MOST_MIB:
                return False
        except ArithmeticError:
            return False
        resources = apps[0].setdefault("resources", {})
        resources["limits"] = {
            **_bound(apps[0], "limits"),
            **_Amounts(1, int(mib)).limits(self.unit_mib),
        }
        for name in (KAI_MEMORY, KAI_FRACTION):
            annotations.pop(name, None)
        self.result.changed = True
        return True

    def _job_or_object(self) -> Object:
        """Return ``spec.jobTemplate`` if it exists, and otherwise the object itself."""
        spec = self.result.body.get("spec")
        job = spec.get("jobTemplate") if isinstance(spec, dict) else None
        return job if isinstance(job, dict) else self.result.body

    def _label_gang(self, template: Object, labels: Object, by_scheduler: bool) -> None:
        """Add the labels of the gang to a pod template, or report which labels to add by hand.

        The gang gets the object's name. An object with a ``jobTemplate`` creates several gangs that
        need different names, so the labels must be added by hand.
        """
        job, name = self._job_or_object(), self.manifest.namespaced_name[1]
        gang = foreign_gang(job)
        if GANG_NAME_LABEL in labels:
            return
        if gang is not None and name and job is self.result.body:
            added = {GANG_NAME_LABEL: name, GANG_SIZE_LABEL: str(gang[1])}
            template.setdefault("metadata", {})["labels"] = labels | added
            self.result.changed = True
        elif gang is not None or (by_scheduler and self.manifest.group not in _OWN_GROUPS):
            size = gang[1] if gang is not None else "SIZE"
            wanted = (
                f"{GANG_NAME_LABEL}: NAME, different for each gang, and {GANG_SIZE_LABEL}: {size}"
            )
            text = (
                f"the other scheduler starts its pods together: to keep that, give the pods the "
                f"labels {wanted}"
            )
            if text not in self.result.notes:
                self.result.notes.append(text)

    def _remove_scheduler(self, spec: Object) -> None:
        """Remove another scheduler's name, so that gputile's webhook can set gputile's scheduler.

        A Volcano object gets the default scheduler's name instead, because Volcano would set its
        own scheduler if the object named none.
        """
        if spec.get("schedulerName") in _SCHEDULERS:
            del spec["schedulerName"]
            self.result.changed = True
        whole = self._job_or_object().get("spec")
        if self.manifest.group == _VOLCANO and isinstance(whole, dict):
            self.result.changed |= whole.get("schedulerName") != DEFAULT_SCHEDULER
            whole["schedulerName"] = DEFAULT_SCHEDULER

    def _metadata(self, template: Object | None, before: str) -> Object:
        metadata = (template or {}).get("metadata") or {}
        self._check(metadata, f"{before}metadata")
        for name in ("annotations", "labels"):
            self._check(metadata.get(name) or {}, f"{before}metadata.{name}")
        return metadata

    def _check(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise self.manifest.origin.error(path, f"must be a mapping, is {kind_of(value)}")


def _containers(spec: Any) -> list[tuple[str, Object]]:
    """Return the containers of a pod spec, each with its path, such as ``containers[0]``."""
    lists = (
        {name: spec.get(name) for name in ("initContainers", "containers")}
        if isinstance(spec, dict)
        else {}
    )
    return [
        (f"{name}[{number}]", each)
        for name, listed in lists.items()
        for number, each in enumerate(listed if isinstance(listed, list) else ())
        if isinstance(each, dict)
    ]


def _at(value: Object, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name, {})
    return value


def _bound(container: Object, kind: str) -> Object:
    found: Object = _at(container, f"resources.{kind}")
    return found


def _asks_gputile(container: Object) -> bool:
    return any(name in GPU_RESOURCES for name in _bound(container, "limits"))
