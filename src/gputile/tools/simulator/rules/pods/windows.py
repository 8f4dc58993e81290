"""Checks which containers of a pod are processes of the host, as the API server does for Windows."""

from collections.abc import Iterator

from gputile.tools.simulator.rules.values.fields import Broken, Json


def broken_host_process(path: str, spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with which containers of the spec at ``path`` are processes of the host."""
    of_pod = spec.get("securityContext", {}).get("windowsOptions", {}).get("hostProcess")
    hosted = []
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(kind, ())):
            own = container.get("securityContext", {}).get("windowsOptions", {}).get("hostProcess")
            if None not in (of_pod, own) and of_pod != own:
                where = f"{path}.{kind}[{i}].securityContext.windowsOptions.hostProcess"
                yield where, f"Invalid value: {str(own).lower()}: must be as the pod's own hostProcess"
            hosted.append(of_pod if own is None else own)
    if any(hosted) and not all(hosted):
        yield path, "Invalid value: if one container is a hostProcess, all containers must be"
    if any(hosted) and not spec.get("hostNetwork"):
        rule = "hostNetwork must be true if pod contains any hostProcess containers"
        yield f"{path}.hostNetwork", f"Invalid value: false: {rule}"
