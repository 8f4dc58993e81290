"""Lists the kinds of Kubernetes, and the fields of those kinds that create pods.

``make fields`` generates ``fields.json`` from the OpenAPI documents of a kube-apiserver (Apache
License 2.0). The file writes a type as ``bool``, ``int32``, ``int64``, ``string``, ``number`` or
``any``, or as the name of another type. ``[]T`` is a list of T, and ``{}T`` a map from strings to
T. ``string(A|B)`` is an enum. A trailing "!" marks a required field.
"""

import functools
import pkgutil

import msgspec

INT_OR_STRING = "util.intstr.IntOrString"
QUANTITY = "resource.Quantity"
TIMES = ("meta.v1.Time", "meta.v1.MicroTime")


class KubernetesKinds(msgspec.Struct, frozen=True):
    """The kinds of the Kubernetes release ``version``, and their types.

    ``kinds`` maps apiVersion and kind to the name of a type, which is "" if its fields are not
    listed. ``types`` maps the name of a type to its fields.
    """

    version: str
    kinds: dict[str, dict[str, str]]
    types: dict[str, dict[str, str]]


@functools.cache
def kubernetes_kinds() -> KubernetesKinds:
    """Load ``fields.json``."""
    return msgspec.json.decode(
        pkgutil.get_data(__name__, "fields.json") or b"", type=KubernetesKinds
    )
