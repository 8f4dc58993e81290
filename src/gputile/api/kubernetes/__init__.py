"""Lists the kinds of Kubernetes, and the fields of those that create pods.

``make fields`` generates ``fields.json`` from the OpenAPI documents of a kube-apiserver (Apache
License 2.0). A type in it is ``bool``, ``int32``, ``int64``, ``string``, ``number``, ``any``, the
name of another type, ``[]T`` for a list, or ``{}T`` for a map of strings to T. ``string(A|B)`` is
an enum. A trailing "!" marks a required field.
"""

import functools
import pkgutil

import msgspec

INT_OR_STRING = "util.intstr.IntOrString"
QUANTITY = "resource.Quantity"
TIMES = ("meta.v1.Time", "meta.v1.MicroTime")


class KubernetesKinds(msgspec.Struct, frozen=True):
    """The kinds of the Kubernetes release ``version``, by apiVersion, and their types' fields.

    The type of a kind is "" if only the kind is known.
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
