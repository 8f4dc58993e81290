"""Checks ConfigMaps and Secrets as the API server does."""

import base64
import json
import math
import re
from collections.abc import Generator, Iterator, Mapping
from typing import Final

from gputile.api.wording import shown
from gputile.tools.simulator.rules.values.fields import Broken, Json

_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+", re.ASCII)
_LONGEST_KEY: Final = 253
_LARGEST: Final = 1024 * 1024  # bytes
_OF_ACCOUNT: Final = "kubernetes.io/service-account.name"
_DOCKER: Final = {
    "kubernetes.io/dockercfg": ".dockercfg",
    "kubernetes.io/dockerconfigjson": ".dockerconfigjson",
}


def broken_config_map(body: Json) -> Iterator[Broken]:
    """Yield what is wrong with a ConfigMap."""
    data, binary = body.get("data", {}), body.get("binaryData", {})
    yield from _keys("data", data)
    yield from _keys("binaryData", binary)
    decoded = yield from _decoded("binaryData", binary, "data")
    for key in sorted(data.keys() & binary.keys()):
        yield f"data[{shown(key)}]", f"Invalid value: {shown(key)}: duplicate of key present in binaryData"
    if sum(len(value.encode()) for value in data.values()) + sum(map(len, decoded.values())) > _LARGEST:
        yield "data", f"Too long: may not be more than {_LARGEST} bytes"


def broken_secret(body: Json) -> Iterator[Broken]:
    """Yield what is wrong with a Secret."""
    yield from _keys("data", body.get("data", {}))
    yield from _keys("stringData", body.get("stringData", {}))
    data = yield from _decoded("data", body.get("data", {}), "stringData")
    data |= {key: value.encode() for key, value in body.get("stringData", {}).items()}
    if sum(map(len, data.values())) > _LARGEST:
        yield "data", f"Too long: may not be more than {_LARGEST} bytes"
    yield from _of_type(body, data)


def _of_type(body: Json, data: Mapping[str, bytes]) -> Iterator[Broken]:
    """Yield what a Secret of its type lacks."""
    kind = body.get("type", "")
    if kind == "kubernetes.io/service-account-token":
        if not body.get("metadata", {}).get("annotations", {}).get(_OF_ACCOUNT):
            yield f"metadata.annotations[{shown(_OF_ACCOUNT)}]", "Required value"
    elif kind in _DOCKER:
        key = _DOCKER[kind]
        if key not in data:
            yield f"data[{shown(key)}]", "Required value"
        elif not _is_json_mapping(data[key]):
            yield f"data[{shown(key)}]", "Invalid value: must be a JSON object"
    elif kind == "kubernetes.io/basic-auth":
        if not {"username", "password"} & data.keys():
            yield 'data["username"]', "Required value: or a password"
    elif kind == "kubernetes.io/ssh-auth":
        if not data.get("ssh-privatekey"):
            yield 'data["ssh-privatekey"]', "Required value"
    elif kind == "kubernetes.io/tls":
        for key in ("tls.crt", "tls.key"):
            if key not in data:
                yield f"data[{shown(key)}]", "Required value"


def _is_json_mapping(data: bytes) -> bool:
    """Return whether data are a JSON object, or null, as Go reads them: in UTF-8, and all numbers finite."""
    try:
        text = data.decode(errors="replace")  # as Go does within texts; elsewhere it is no JSON
        found = json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_finite)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict | None)


def _finite(text: str) -> float:
    """Return a number.

    Raises:
        ValueError: it is larger than 64 bits have room for, or not a number.
    """
    if math.isfinite(number := float(text)):
        return number
    raise ValueError(f"{text[:20]} is no number of JSON")


def _keys(field: str, data: Mapping[str, str]) -> Iterator[Broken]:
    for key in data:
        if not _KEY.fullmatch(key) or key == "." or key.startswith("..") or len(key) > _LONGEST_KEY:
            rule = f"must be no more than {_LONGEST_KEY} letters, digits, '-', '_' and '.', and not begin with '..'"
            yield f"{field}[{shown(key)}]", f"Invalid value: {rule}"


def _decoded(field: str, data: Mapping[str, str], plain: str) -> Generator[Broken, None, dict[str, bytes]]:
    """Yield what is not base64, and return what the rest stands for; plain text belongs into the field ``plain``."""
    found: dict[str, bytes] = {}
    for key, value in data.items():
        try:
            found[key] = base64.b64decode(value.replace("\n", "").replace("\r", ""), validate=True)
        except ValueError:
            found[key] = b""
            yield f"{field}[{shown(key)}]", f"must be base64: write plain text into {plain}"
    return found
