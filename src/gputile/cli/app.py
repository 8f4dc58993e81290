"""Lists all commands, and imports the module of a command only when the command is used."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from gputile.version import VERSION

CONTEXT = {"help_option_names": ["-h", "--help"]}


@dataclass(frozen=True, slots=True)
class Entry:
    """A command whose module is not imported yet.

    ``name`` is a function or typer group in ``module``. The help ends with ``examples``.
    """

    module: str
    name: str
    help: str
    examples: tuple[str, ...] = ()


USER_COMMANDS: Mapping[str, Entry] = {
    "simulate": Entry(
        "simulate",
        "simulate",
        "Show on which nodes and GPUs the pods of manifests would run, using the scheduler's own "
        "code.",
        (
            "simulate --from-cluster -f deploy.yaml",
            "simulate --from-cluster --mode cgpu --need 8GiB",
            "simulate --cluster cluster.yaml -f pods.yaml --compare packing",
        ),
    ),
    "inspect": Entry(
        "inspect",
        "inspect",
        "Show how much of each GPU is allocated, by node.",
        ("inspect", "inspect -d -n team-a", "inspect -o bars -l ack.node.gpu.schedule=cgpu"),
    ),
    "explain": Entry(
        "explain",
        "explain",
        "Explain where a pod runs, or why it is pending and what would help.",
        (
            "explain web-5d4f-a -n team-a",
            "explain deployment/web",
            "explain team-a/web-5d4f-a --all -o yaml",
        ),
    ),
    "top": Entry(
        "live",
        "top",
        "Show a live table of the GPU resources that nodes, GPUs or pods have booked and use.",
        ("top", "top pods -n team-a --sort used", "top gpus --once -o json"),
    ),
    "web": Entry(
        "live",
        "web",
        "Serve a live web page of the cluster's GPUs.",
        ("web", "web --port 8080", "web --context staging"),
    ),
    "status": Entry(
        "status",
        "status",
        "Show whether gputile is deployed, and the mode and memory unit of each GPU node.",
        ("status", "status --wait 5m", "status --installed-in gpu-system -o yaml"),
    ),
    "nodepool": Entry(
        "documents",
        "nodepool",
        "Print the commands and manifests for a GPU node pool on EKS, AKS or GKE.",
        (
            "nodepool -f pool.yaml > pool.sh",
            "nodepool -f pool.yaml --set mode=cgpu --set gpus.count=4",
            "schema nodepool",
        ),
    ),
    "convert": Entry(
        "documents",
        "convert",
        "Convert manifests for HAMi, KAI, Run:ai, Volcano or time-slicing to gputile.",
        (
            "convert -f hami.yaml > gputile.yaml",
            "convert -f manifests/ --unit 128MiB",
            "convert -f kai.yaml --gpu-memory 80GiB | kubectl apply -f -",
        ),
    ),
    "schema": Entry(
        "documents",
        "schema",
        "Print the JSON Schema of an input file or of a command's JSON output.",
        ("schema", "schema configuration", "schema simulate > simulate.schema.json"),
    ),
    "version": Entry("documents", "version", "Print the version."),
}
SYSTEM_COMMANDS: Mapping[str, Entry] = {
    "selftest": Entry(
        "selftest", "selftest", "Test on this machine that containers cannot exceed their limits."
    ),
    "agent": Entry(
        "services", "agent", "Serve the GPUs of this node as the kubelet's device plugin."
    ),
    "extender": Entry(
        "services",
        "extender",
        "Tell kube-scheduler which nodes fit a pod, and choose the pod's GPUs.",
    ),
    "controller": Entry(
        "services", "controller", "Plan gangs and preemption, request nodes, and taint GPU nodes."
    ),
    "webhook": Entry(
        "services", "webhook", "Complete and validate GPU pods before they are stored."
    ),
}


class _Commands(Mapping[str, Any]):
    """The commands by name. A lookup imports the command's module."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries

    def __getitem__(self, name: str) -> Any:
        entry = self._entries[name]
        found = getattr(import_module(f"gputile.cli.commands.{entry.module}"), entry.name)
        if isinstance(found, typer.Typer):
            group = typer.main.get_group(found)
            group.name = name
            return group
        alone = plain(found, name, entry.examples)
        return typer.main.get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class _Sections(TyperGroup):
    """A command group whose help and completion do not import the commands' modules."""

    sections: ClassVar[Mapping[str, Mapping[str, Entry]]]

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._entries = {
            name: each for section in self.sections.values() for name, each in section.items()
        }
        self._completes = False
        # TyperGroup never writes to this mapping.
        self.commands = _Commands(self._entries)  # type: ignore[assignment]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Treat ``help`` and ``help COMMAND`` as ``--help``, as kubectl and helm do."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def list_commands(self, _ctx: Any) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command. For shell completion, return a dummy that imports no module."""
        if self._completes:
            return TyperCommand(cmd_name, help=self._entries[cmd_name].help)
        if cmd_name not in self._entries and get_close_matches(cmd_name, ["help"]):
            # Typer itself suggests only the names of commands, and "help" is not a command.
            ctx.fail(f"No such command {cmd_name!r}. Did you mean 'help'?")
        return super().get_command(ctx, cmd_name)

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        for title, section in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.help) for name, entry in section.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        self._completes = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._completes = False


class _AllCommands(_Sections):
    sections: ClassVar = {
        "Commands": USER_COMMANDS,
        "On nodes, and services that the chart runs": SYSTEM_COMMANDS,
    }


class _UserCommands(_Sections):
    sections: ClassVar = {"Commands": USER_COMMANDS}


def plain(command: Any, name: str, examples: Sequence[str] = ()) -> typer.Typer:
    """Return a program with one command. The help is plain text because loading Rich is slow."""
    lines = "".join(f"\n  gputile {each}" for each in examples)
    alone = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=CONTEXT,
    )
    alone.command(name, epilog=f"\b\nExamples:{lines}" if lines else None)(command)
    return alone


def _group(kind: type[_Sections], *, completion: bool) -> typer.Typer:
    group = typer.Typer(
        name="gputile",
        cls=kind,
        help="Share the GPUs of a Kubernetes cluster.",
        no_args_is_help=True,
        add_completion=completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=CONTEXT,
    )
    group.callback()(_root)
    return group


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"gputile {VERSION}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Share the GPUs of a Kubernetes cluster."""


app = _group(_AllCommands, completion=True)
kubectl_app = _group(_UserCommands, completion=False)
