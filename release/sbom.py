"""Writes the image's bill of materials in the format of CycloneDX.

It lists every Debian package and every Python distribution in the image.
"""

import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import Distribution
from typing import Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from release.root_filesystem import SUITE, DebianPackage

# The namespace of the UUIDs of bills of materials.
_NAMESPACE: Final = uuid.UUID("7d1c8a56-3f0e-5b52-9d5b-2b6f6f2f2c11")

_LONGEST_NAME: Final = (
    80  # characters of a licence's name. Some packages declare the whole text instead.
)


def bill_of_materials(
    reference: str,
    digest: str,
    epoch: int,
    debian: Iterable[DebianPackage],
    python: Sequence[Distribution],
) -> str:
    """Return the bill of the image ``reference`` with this manifest digest, as JSON (CycloneDX
    1.6).

    ``epoch`` is the time of the build, in seconds of Unix time. The same image always gives the
    same text.
    """
    image = Component(name=reference, version=digest, type=ComponentType.CONTAINER, bom_ref="image")
    bom = Bom(
        serial_number=uuid.uuid5(_NAMESPACE, digest),
        metadata=BomMetaData(component=image, timestamp=datetime.fromtimestamp(epoch, UTC)),
    )
    for package in debian:
        url = PackageURL(
            "deb",
            "debian",
            package.name,
            package.version,
            {"arch": package.architecture, "distro": SUITE},
        )
        licenses = [LicenseFactory().make_with_name(name) for name in package.licenses]
        bom.components.add(_component(package.name, package.version, url, licenses))
    for found in python:
        url = PackageURL("pypi", name=found.name.lower().replace("_", "-"), version=found.version)
        bom.components.add(_component(found.name, found.version, url, _licenses(found)))
    bom.register_dependency(image, bom.components)
    return (
        make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2) + "\n"
    )


def _component(
    name: str, version: str, url: PackageURL, licenses: Iterable[License] = ()
) -> Component:
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        purl=url,
        bom_ref=url.to_string(),
        licenses=licenses,
    )


def _licenses(found: Distribution) -> Iterable[License]:
    """Return the licences that a distribution declares.

    They are an SPDX expression (PEP 639), or else a name or classifiers.
    """
    factory, metadata = LicenseFactory(), found.metadata
    if declared := metadata.get_all("License-Expression"):
        return [factory.make_from_string(expression) for expression in declared]
    named = "\n".join(metadata.get_all("License") or []).strip()
    if named and "\n" not in named and len(named) <= _LONGEST_NAME:
        return [factory.make_with_name(named)]
    classifiers = [
        each for each in metadata.get_all("Classifier") or [] if each.startswith("License :: ")
    ]
    return [factory.make_with_name(each.rpartition(" :: ")[2]) for each in sorted(classifiers)]
