"""Decides which namespaces trust each other, so that their pods may share a GPU that isolates nothing."""

from typing import Annotated, Literal

import msgspec

from gputile.api.config.section import ConfigurationError, Namespace, Section
from gputile.api.field_mistake import described


class Trust(Section, frozen=True):
    """Who may share a GPU that has no memory isolation (G5)."""

    by: Annotated[
        Literal["namespace", "cluster"],
        described(
            "Who may share a GPU that isolates nothing: `namespace`, the pods of one namespace or of one group of "
            "`trust.groups`; `cluster`, everybody."
        ),
    ] = "namespace"
    groups: Annotated[
        dict[str, list[Namespace]],
        described("Namespaces that trust each other, by a name of the group. A namespace is in one group at most."),
    ] = msgspec.field(default_factory=dict)

    def check(self) -> None:
        """Refuse a namespace of two groups.

        Raises:
            ConfigurationError: there is one.
        """
        seen: dict[str, str] = {}
        for group, namespaces in self.groups.items():
            for namespace in namespaces:
                if seen.setdefault(namespace, group) != group:
                    raise ConfigurationError(
                        f"trust.groups: namespace {namespace} is in {seen[namespace]} and in {group}: keep it in one"
                    )

    def group_of(self, namespace: str) -> str:
        """Return the trust group of a namespace: itself, the name of its group, or "*" for everybody."""
        if self.by == "cluster":
            return "*"
        for group, namespaces in self.groups.items():
            if namespace in namespaces:
                return f"group:{group}"
        return namespace
