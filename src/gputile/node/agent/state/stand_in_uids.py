"""Names what stands for the UID of a pod where the API server does not know the pod, or nobody does."""

_STATIC, _UNKNOWN = "static:", "unknown:"


def static_uid(key: str) -> str:
    """Return what stands for the UID of a pod that the API server does not know: a static pod."""
    return _STATIC + key


def unknown_uid(device_id: str, at_ns: int) -> str:
    """Return what stands for the UID of a pod that nobody knows, which was given ``device_id`` at this Unix time in
    nanoseconds: an init container's IDs are given again to the containers after it.
    """
    return f"{_UNKNOWN}{device_id}:{at_ns}"


def stand_in(uid: str) -> bool:
    """Return whether ``uid`` is no pod's."""
    return uid.startswith((_STATIC, _UNKNOWN))
