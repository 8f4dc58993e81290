"""Checks what container runtimes never start, though an API server takes it.

As containerd and runc do it on Linux. A pod for Windows, whose paths are others, is not judged.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from gputile.api.wording import shown
from gputile.tools.simulator.documents.paths import Step, entries, written
from gputile.tools.simulator.rules.values.fields import Broken
from gputile.tools.simulator.rules.values.paths import broken_path_below

Json = Mapping[str, Any]
_KINDS: Final = ("initContainers", "containers")
_NEVER: Final = "so no kubelet starts the container"
_LONGEST_NAME: Final = 255  # bytes of one name in a path
_LONGEST_WORD: Final = 131_071  # bytes of an argument, or of a variable and its name, with memory pages of 4 KiB
_VARIABLE: Final = re.compile(r"\$(\$|\(([^)]*)\))")
_OF_SERVICES: Final = re.compile(r"_(SERVICE|PORT)(_|\Z)")  # that a kubelet sets for each Service
_OF_WINDOWS: Final = re.compile(r"[A-Za-z]:|\\")
_NAMED: Final = (("startupProbe",), ("readinessProbe",), ("lifecycle", "postStart"))  # without which none is ready


def refused_by_runtimes(path: str, spec: Json) -> Iterator[Broken]:
    """Yield what no runtime starts of the valid spec at ``path``."""
    if spec.get("os", {}).get("name") == "windows":
        return
    yield from _zeros(path, spec)
    of_hosts = {each["name"] for each in spec.get("volumes", ()) if "hostPath" in each}
    mounted = set()
    for kind in _KINDS:
        for i, container in enumerate(spec.get(kind, ())):
            where = f"{path}.{kind}[{i}]"
            mounted |= {each["name"] for each in container.get("volumeMounts", ())}
            yield from _program(where, container)
            yield from _mounts(where, container, of_hosts)
            yield from _variables(where, container)
            yield from _named_ports(where, container)
    for i, volume in enumerate(spec.get("volumes", ())):
        if volume["name"] in mounted:  # no kubelet sets another one up
            yield from _volume(f"{path}.volumes[{i}]", volume)


def long_words(container: Json) -> Iterator[str]:
    """Yield the fields of a container with a text that is longer than most kernels hand to a program."""
    for field in ("command", "args"):
        yield from (f"{field}[{i}]" for i, word in enumerate(container.get(field, ())) if _is_long(word))
    for i, variable in enumerate(container.get("env", ())):
        if _is_long(f"{variable['name']}={variable.get('value', '')}"):
            yield f"env[{i}].value"


def _is_long(word: str) -> bool:
    return len(word) > _LONGEST_WORD // 4 and len(word.encode()) > _LONGEST_WORD


def _zeros(path: str, spec: Json) -> Iterator[Broken]:
    """Yield texts with a character that ends a text for the kernel."""
    for field in (*_KINDS, "volumes"):
        for steps in _with_zero(spec.get(field, ()), (field,)):
            yield f"{path}.{written(steps)}", f"Invalid value: it has a NUL character, {_NEVER}"


def _with_zero(value: Any, steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    if isinstance(value, str):
        if "\0" in value:
            yield steps
        return
    for step, entry in entries(value):
        yield from _with_zero(entry, (*steps, step))


def _program(path: str, container: Json) -> Iterator[Broken]:
    directory = container.get("workingDir", "")
    if directory and not directory.startswith("/") and not _OF_WINDOWS.match(directory):
        yield f"{path}.workingDir", f"Invalid value: {shown(directory)}: it must be an absolute path, {_NEVER}"
    if container.get("command", [" "])[:1] == [""]:
        yield f"{path}.command[0]", f'Invalid value: "": it names no program, {_NEVER}'
    message = container.get("terminationMessagePath", "")
    if message and ((place := _place(message)) in ("/", "/dev") or _is_below(place, "/proc")):
        yield f"{path}.terminationMessagePath", f"Invalid value: {shown(message)}: no file can be there, {_NEVER}"
    for field in ("workingDir", "terminationMessagePath"):
        yield from _names(f"{path}.{field}", container.get(field, ""))


def _mounts(path: str, container: Json, of_hosts: set[str]) -> Iterator[Broken]:
    """Yield mounts over what a container needs; a directory of the host may be its own /dev or /proc."""
    for i, mount in enumerate(container.get("volumeMounts", ())):
        where, place = f"{path}.volumeMounts[{i}]", _place(mount["mountPath"])
        below = _is_below(place, "/proc") and not mount.get("subPath") and not mount.get("subPathExpr")
        if place == "/" or (mount["name"] not in of_hosts and (place == "/dev" or below)):
            rule = f"no volume can be mounted there, {_NEVER}"
            yield f"{where}.mountPath", f"Invalid value: {shown(mount['mountPath'])}: {rule}"
        for field in ("mountPath", "subPath"):
            yield from _names(f"{where}.{field}", mount.get(field, ""))


def _variables(path: str, container: Json) -> Iterator[Broken]:
    """Yield paths with variables that a container does not have, or by whose values they lead elsewhere."""
    if container.get("envFrom"):
        return
    texts = {each["name"]: "" if "valueFrom" in each else each.get("value", "") for each in container.get("env", ())}
    known = {each["name"] for each in container.get("env", ()) if "valueFrom" in each or each.get("value")}
    for i, mount in enumerate(container.get("volumeMounts", ())):
        text = mount.get("subPathExpr", "")
        end = text.rfind(")") + 1  # behind it nothing is searched for its end
        names = [name for _, name in _VARIABLE.findall(text[:end]) if name]
        where = f"{path}.volumeMounts[{i}].subPathExpr"
        for name in names:
            if name not in known and not _OF_SERVICES.search(name):
                said = f"Invalid value: {shown(text)}: the container has no variable {shown(name)}"
                yield where, f"{said}{' with a value' if name in texts else ''}, {_NEVER}"
        if names and all(texts.get(name) and "$" not in texts[name] for name in names):
            place = _VARIABLE.sub(lambda found: texts.get(found[2] or "", "$"), text[:end]) + text[end:]
            if broken_path_below(place):
                yield where, f"Invalid value: {shown(text)}: it is {shown(place)}, outside of the volume, {_NEVER}"


def _named_ports(path: str, container: Json) -> Iterator[Broken]:
    """Yield ports by name that a container does not have, of what has to succeed before it is ready."""
    names = {each.get("name") for each in container.get("ports", ())}
    for steps in _NAMED:
        found: Any = container
        for step in steps:
            found = found.get(step, {})
        for handler in ("httpGet", "tcpSocket"):
            port = found.get(handler, {}).get("port")
            if isinstance(port, str) and port not in names:
                where = f"{path}.{'.'.join(steps)}.{handler}.port"
                rule = "no port of the container is called so, so no kubelet finds it, and the pod is never ready"
                yield where, f"Invalid value: {shown(port)}: {rule}"


def _volume(path: str, volume: Json) -> Iterator[Broken]:
    place = volume.get("hostPath", {}).get("path", "/")
    if not place.startswith("/") and not _OF_WINDOWS.match(place):
        yield f"{path}.hostPath.path", f"Invalid value: {shown(place)}: it must be an absolute path, {_NEVER}"
    sources = enumerate(volume.get("projected", {}).get("sources", ()))
    parts = [(path, volume), *((f"{path}.projected.sources[{i}]", source) for i, source in sources)]
    yield from _files([each for where, part in parts for each in _items(where, part)])


def _items(path: str, source: Json) -> Iterator[tuple[str, str]]:
    """Yield the field and the path of each file that a volume has by name."""
    for field in ("configMap", "downwardAPI", "secret"):
        for i, item in enumerate(source.get(field, {}).get("items", ())):
            yield f"{path}.{field}.items[{i}].path", item["path"]
    if "serviceAccountToken" in source:
        yield f"{path}.serviceAccountToken.path", source["serviceAccountToken"]["path"]


def _files(files: Sequence[tuple[str, str]]) -> Iterator[Broken]:
    """Yield files of one volume that would have to be directories, too."""
    places = [_place(name) for _, name in files]
    directories = set(chain.from_iterable(_parents(place) for place in places))
    for (where, name), place in zip(files, places, strict=True):
        if place in directories:
            yield where, f"Invalid value: {shown(name)}: it is a directory of the volume, {_NEVER}"
        yield from _names(where, name)


def _parents(place: str) -> Iterator[str]:
    """Yield the directories in which a file is, the root of its volume first."""
    yield "/"
    yield from (place[:i] for i, mark in enumerate(place) if mark == "/" and i)


def _place(path: str) -> str:
    """Return the absolute path that a runtime makes of ``path``."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


def _is_below(place: str, directory: str) -> bool:
    return place == directory or place.startswith(f"{directory}/")


def _names(where: str, path: str) -> Iterator[Broken]:
    """Yield that a name in a path is longer than files' names are."""
    if len(path) > _LONGEST_NAME // 4 and any(len(name.encode()) > _LONGEST_NAME for name in path.split("/")):
        yield where, f"Invalid value: a name in it has more than {_LONGEST_NAME} bytes, {_NEVER}"
