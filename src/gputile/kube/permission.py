"""Names the RBAC permission that a request needs, so that a refusal can say what is lacking."""

_VERBS = {"POST": "create", "PATCH": "patch"}


def permission_of(method: str, path: str) -> str:
    """Return the permission for ``method`` on ``path`` (its query included) in words: verb, resource, group, where."""
    resource_path, _, query = path.partition("?")
    segments = resource_path.strip("/").split("/")
    if segments[0] == "api" and len(segments) > 2:
        group, rest = "", segments[2:]
    elif segments[0] == "apis" and len(segments) > 3:
        group, rest = segments[1], segments[3:]
    else:
        return f'verb "{method.lower()}" on the non-resource URL "{resource_path}"'
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    verb = _VERBS.get(method) or _read_verb(named=len(rest) > 1, watched="watch=" in query)
    resource = "/".join([rest[0], *rest[2:3]])
    where = f'in namespace "{namespace}"' if namespace else "in the whole cluster"
    return f'verb "{verb}" on resource "{resource}" of API group "{group}" {where}'


def _read_verb(*, named: bool, watched: bool) -> str:
    if watched:
        return "watch"
    return "get" if named else "list"
