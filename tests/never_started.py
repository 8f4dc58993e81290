"""Containers that an API server takes and no kubelet starts, and neighbours that one starts.

For the simulator, and for a real kubelet with containerd and runc. The container's other fields, and those of its pod,
are the test's own; ``ConfigMap`` c is there with the key ``a``.
"""

from typing import Any, NamedTuple

Json = dict[str, Any]
EMPTY: Json = {"volumes": [{"name": "v", "emptyDir": {}}]}
CONFIG_MAP: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}


class Odd(NamedTuple):
    """Fields of a container and of its pod, and a part of what is said of them; nothing of those that start."""

    name: str
    container: Json
    pod: Json
    said: str = ""


def _mounted(path: str, **more: str) -> Json:
    return {"volumeMounts": [{"name": "v", "mountPath": path, **more}]}


def _volume(**source: Any) -> Json:
    return {"volumes": [{"name": "v", **source}]}


def _files(*paths: str) -> Json:
    return _volume(configMap={"name": "c", "items": [{"key": "a", "path": path} for path in paths]})


def _below(value: str) -> Json:
    return {"env": [{"name": "A", "value": value}], **_mounted("/v", subPathExpr="$(A)")}


def _projected(*paths: str) -> Json:
    parts = [{"downwardAPI": {"items": [{"path": each, "fieldRef": {"fieldPath": "metadata.name"}}]}} for each in paths]
    return _volume(projected={"sources": parts})


_AT_PLACE = "volumeMounts[0].mountPath: Invalid value: "
_EXPRESSION = "volumeMounts[0].subPathExpr: Invalid value: "
NEVER_STARTED = (
    Odd("workdir", {"workingDir": "app"}, {}, "workingDir: Invalid value"),
    Odd("workdir-variable", {"workingDir": "$(HOME)"}, {}, "workingDir: Invalid value"),
    Odd("no-command", {"command": [""]}, {}, "command[0]: Invalid value"),
    Odd("zero-in-command", {"command": ["/probe", "a\0b"]}, {}, "command[1]: Invalid value: it has a NUL"),
    Odd("zero-in-variable", {"env": [{"name": "A", "value": "a\0b"}]}, {}, "env[0].value: Invalid value: it has a NUL"),
    Odd("mount-root", _mounted("/a/.."), EMPTY, _AT_PLACE),
    Odd("mount-dev", _mounted("/dev"), EMPTY, _AT_PLACE),
    Odd("mount-proc", _mounted("/proc/x"), EMPTY, _AT_PLACE),
    Odd("mount-long", _mounted("/" + "a" * 300), EMPTY, "mountPath: Invalid value: a name in it has more than 255"),
    Odd("message-root", {"terminationMessagePath": "/"}, {}, "terminationMessagePath: Invalid value"),
    Odd("message-proc", {"terminationMessagePath": "/proc/x"}, {}, "terminationMessagePath: Invalid value"),
    Odd("image-volume", _mounted("/v"), _volume(image={"reference": "Upper:1"}), "image.reference: Invalid value"),
    Odd("host-path", _mounted("/v"), _volume(hostPath={"path": "data"}), "hostPath.path: Invalid value"),
    Odd("file-and-directory", _mounted("/v"), _files("x", "x/y"), "items[0].path: Invalid value"),
    Odd("file-is-root", _mounted("/v"), _files("."), "items[0].path: Invalid value"),
    Odd("file-long", _mounted("/v"), _files("x" * 300), "items[0].path: Invalid value"),
    Odd("projected", _mounted("/v"), _projected("a/b", "a"), "sources[1].downwardAPI.items[0].path: Invalid value"),
    Odd("sub-path-long", _mounted("/v", subPath="y" * 300), EMPTY, "subPath: Invalid value"),
    Odd("sub-path-absolute", _below("/x"), EMPTY, f'{_EXPRESSION}"$(A)": it is "/x", outside'),
    Odd("sub-path-above", _below("../x"), EMPTY, f'{_EXPRESSION}"$(A)": it is "../x", outside'),
    Odd("sub-path-empty", _below(""), EMPTY, f'{_EXPRESSION}"$(A)": the container has no variable "A" with a value'),
    Odd(
        "key-of-variable",
        {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "b"}}}]},
        {},
        "configMapKeyRef.key: Invalid value",
    ),
    Odd(
        "key-of-file",
        _mounted("/v"),
        _volume(configMap={"name": "c", "items": [{"key": "b", "path": "x"}]}),
        "configMap.items[0].key: Invalid value",
    ),
    Odd("hook", {"lifecycle": {"postStart": {"httpGet": {"port": "none"}}}}, {}, "postStart.httpGet.port: Invalid"),
)
STARTED = (
    Odd("workdir-right", {"workingDir": "/made"}, {}),
    Odd("no-argument", {"args": [""]}, {}),
    Odd("mount-relative", _mounted("data"), EMPTY),
    Odd("mount-sys", _mounted("/sys"), EMPTY),
    Odd("mount-in-dev", _mounted("/dev/x"), EMPTY),
    Odd("message-relative", {"terminationMessagePath": "log"}, {}),
    Odd("not-mounted", {}, _volume(configMap={"name": "c", "items": [{"key": "b", "path": "x"}]})),
    Odd("file-slash", _mounted("/v"), _files("x/")),
    Odd("files", _mounted("/v"), _files("x/y", "x/z", "xx")),
    Odd("sub-path-right", _below("x/y"), EMPTY),
    Odd("long-word", {"args": ["x" * 131_071]}, {}),
)
