"""Lists the names of Kubernetes' own kinds, and the fields of those that make pods.

``fields.json`` is condensed from what a kube-apiserver serves (the OpenAPI documents of Kubernetes, which are under the
Apache License 2.0); ``make fields`` writes it. A type in it is ``bool``, ``int32``, ``int64``, ``string``, ``number``,
``any``, the name of another type, ``[]T`` for a list or ``{}T`` for a map of strings to T; ``string(A|B)`` names what a
string may be. A "!" behind it says that the field must be there.
"""

import functools
import pkgutil

import msgspec

INT_OR_STRING = "util.intstr.IntOrString"
QUANTITY = "resource.Quantity"
TIMES = ("meta.v1.Time", "meta.v1.MicroTime")


class KubernetesKinds(msgspec.Struct, frozen=True):
    """The kinds by apiVersion, each with the name of its type, "" where only the kind is known; and the types' fields.

    ``version`` is the release of Kubernetes that they are of.
    """

    version: str
    kinds: dict[str, dict[str, str]]
    types: dict[str, dict[str, str]]


@functools.cache
def kubernetes_kinds() -> KubernetesKinds:
    """Return what is known of Kubernetes' kinds.

    Raises:
        FileNotFoundError: the installation lacks the table.
    """
    data = pkgutil.get_data(__name__, "fields.json")
    if data is None:
        raise FileNotFoundError("fields.json is not a part of this installation")
    return msgspec.json.decode(data, type=KubernetesKinds)
