"""``synth task-set``, ``synth profile`` and ``synth policy``: publish and list immutable versions."""

from pathlib import Path
from typing import Annotated

import typer

from cli import options, terminal
from cli.connection import existing_platform, platform
from domain.records.wording import counted

task_sets = typer.Typer(no_args_is_help=True, help="Publish, list and show task sets.")
profiles = typer.Typer(no_args_is_help=True, help="Publish and list agent profiles.")
policies = typer.Typer(no_args_is_help=True, help="Make and list base policies.")

Reference = Annotated[str, typer.Argument(metavar="TEAM/NAME@vN", help="A version; once published it never changes.")]


@task_sets.command(
    "publish", epilog=options.example("synth task-set publish examples/generated/practice team/practice@v1")
)
def publish_task_set(
    directory: Annotated[Path, typer.Argument(help="One task, or a directory of tasks, in Harbor's format.")],
    reference: Reference,
    *,
    host_runnable: Annotated[
        bool,
        typer.Option("--host-runnable", help="Declare that boxes without the tasks' images may run them."),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Check, pin and publish tasks as an immutable task set.

    JSON: {schema_version, reference, n_tasks, n_families, digest, page_tasks, pages, classes}.
    """
    from domain.records.names import parse_reference
    from domain.service.publish import publish_task_set as publish

    found = publish(
        platform(), parse_reference(reference, field="reference"), str(directory), host_runnable=host_runnable
    )
    if as_json:
        terminal.emit(found)
    else:
        terminal.say(
            f"Published [bold]{found.reference}[/]: {counted(found.n_tasks, 'task')}, digest {found.digest[:12]}"
        )
        terminal.note(f"[dim]try its solutions, and nothing: {terminal.command()} task-set check {found.reference}[/]")


@task_sets.command("import-swe", epilog=options.example("synth task-set import-swe rows.jsonl tasks/swe"))
def import_swe(
    rows: Annotated[Path, typer.Argument(metavar="ROWS.jsonl", help="Rows as SWE-bench has them; `repo` is on disk.")],
    directory: Annotated[Path, typer.Argument(help="Where the tasks go: a new or empty directory.")],
    *,
    as_json: options.Json = False,
) -> None:
    """Write rows (repository, base commit, patches, tests) as tasks in Harbor's format. JSON: {tasks}."""
    from adapters.benchmarks.swe_rows import import_rows

    found = [str(path) for path in import_rows(rows, directory)]
    if as_json:
        terminal.emit({"tasks": found})
    else:
        terminal.say(f"Wrote {counted(len(found), 'task')} into [bold]{directory}[/]; next: synth task-set publish")


@task_sets.command(
    "build", epilog=options.example("synth task-set build tasks team/evaluation@v2 --push registry.example/team")
)
def build_task_set(
    directory: Annotated[Path, typer.Argument(help="One task, or a directory of tasks; it is not changed.")],
    reference: Reference,
    *,
    push: Annotated[str, typer.Option(metavar="REGISTRY/PATH", help="Where images go, each under its task's name.")],
    out: Annotated[
        Path | None, typer.Option(help="Keep the tasks with their pinned images in this new directory.")
    ] = None,
    limit_s: Annotated[float, typer.Option(min=1, help="Seconds for each image to be built, and to be pushed.")] = 1800,
    as_json: options.Json = False,
) -> None:
    """Build the Dockerfiles of tasks, push the images, and publish the tasks with the images' digests.

    For sandboxes that cannot build, such as Kubernetes. Needs the Docker engine of this machine (SYNTH_DOCKER_HOST),
    logged in to the registry. JSON: {task_set, images}.
    """
    import tempfile

    from cli.connection import settings
    from domain.records.names import parse_reference
    from domain.service.publish import publish_task_set as publish
    from resources.wiring import pin_images

    named = parse_reference(reference, field="reference")
    with tempfile.TemporaryDirectory() as scratch, terminal.bars(shown=not as_json) as progress:
        target = out or Path(scratch) / "tasks"
        images = pin_images(settings(), directory, target, push, limit_s, progress)
        found = publish(platform(), named, str(target))
    if as_json:
        terminal.emit({"task_set": found, "images": images})
        return
    terminal.show_table(("built from", "image"), sorted(images.items()))
    terminal.say(
        f"Published [bold]{found.reference}[/]: {counted(found.n_tasks, 'task')}, "
        f"{counted(len(images), 'image')} pinned"
    )


@task_sets.command("list", epilog=options.example("synth task-set list"))
def list_task_sets(*, as_json: options.Json = False) -> None:
    """List published task sets, oldest first. JSON: {task_sets}."""
    with existing_platform().ledger.snapshot() as tx:
        found = [tx.catalog.task_set(reference)[0] for reference in tx.catalog.task_sets()]
    if as_json:
        terminal.emit({"task_sets": found})
        return
    terminal.show_table(
        ("task set", "tasks", "families", "digest"),
        [
            (
                str(item.reference),
                str(item.n_tasks),
                str(item.n_families),
                item.digest[:12],
            )
            for item in found
        ],
        right=frozenset({"tasks", "families"}),
        empty="No task set yet: synth task-set publish DIRECTORY TEAM/NAME@v1",
    )


@task_sets.command("show", epilog=options.example("synth task-set show team/evaluation@v1 --limit 20"))
def show_task_set(
    reference: Reference,
    *,
    limit: Annotated[int, typer.Option(min=1, help="Tasks to list, the first ones.")] = 100,
    as_json: options.Json = False,
) -> None:
    """List the tasks of a published set in their order. JSON: {task_set, tasks: [{name, digest, family, record}]}."""
    from itertools import islice

    from domain.records.names import parse_reference
    from domain.service.task_pages import entries_of

    opened = existing_platform()
    with opened.ledger.snapshot() as tx:
        found, _ = tx.catalog.task_set(parse_reference(reference, field="reference"))
    entries = tuple(islice(entries_of(opened.records, found), limit))
    if as_json:
        terminal.emit({"task_set": found, "tasks": entries})
        return
    rows = [(entry.name, entry.family or "–", entry.digest[:12]) for entry in entries]
    terminal.show_table(("task", "family", "digest"), rows)
    terminal.note(f"{len(entries)} of {counted(found.n_tasks, 'task')} of {found.reference}")


@profiles.command("publish", epilog=options.example("synth profile publish @agent.json team/agent@v1"))
def publish_profile(
    profile: Annotated[str, typer.Argument(metavar="@FILE", help="The profile document.")],
    reference: Reference,
    *,
    as_json: options.Json = False,
) -> None:
    """Check and publish a profile under an immutable version. JSON: {reference, digest, profile}."""
    from adapters.inputs.documents import read_profile
    from cli import submission
    from domain.records.names import parse_reference
    from domain.service.publish import publish_profile as publish
    from domain.service.sources import written_in

    file = submission.document(profile, option="profile", example="agent.json")
    document = read_profile(file)
    parsed = parse_reference(reference, field="reference")
    with written_in({f"profile {document.name!r}": file}):
        digest = publish(platform(), document, parsed)
    if as_json:
        terminal.emit({"reference": str(parsed), "digest": digest, "profile": document})
    else:
        terminal.say(f"Published [bold]{parsed}[/]: engine {document.engine}, digest {digest[:12]}")


@profiles.command("list", epilog=options.example("synth profile list"))
def list_profiles(*, as_json: options.Json = False) -> None:
    """List published profiles, oldest first. JSON: {profiles: [{reference, digest, profile}]}."""
    with existing_platform().ledger.snapshot() as tx:
        found = [(reference, digest, tx.catalog.profile(digest)) for reference, digest in tx.catalog.profiles()]
    if as_json:
        rows = [{"reference": reference, "digest": digest, "profile": profile} for reference, digest, profile in found]
        terminal.emit({"profiles": rows})
        return
    terminal.show_table(
        ("profile", "engine", "model", "digest"),
        [(reference, profile.engine, profile.model or "–", digest[:12]) for reference, digest, profile in found],
        empty="No profile is published: synth profile publish @FILE TEAM/NAME@v1, or name a profile as @FILE",
    )


@policies.command("make", epilog=options.example("synth policy make @examples/base-policy.json"))
def make_policy(
    recipe: Annotated[str, typer.Argument(metavar="@FILE", help="The recipe: sizes, steps, seed, demonstrations.")],
    *,
    as_json: options.Json = False,
) -> None:
    """Make a base policy from demonstrations; a recipe that was made before returns at once. JSON: the policy."""
    from cli.base_policy import make

    with terminal.bars(shown=not as_json) as progress:
        found = make(platform(), recipe, progress)
    if as_json:
        terminal.emit(found)
    else:
        terminal.say(
            f"Base policy [bold]base:{found.name}[/]: {found.n_parameters:,} parameters, digest {found.digest[:12]}"
        )


@policies.command("list", epilog=options.example("synth policy list"))
def list_policies(*, as_json: options.Json = False) -> None:
    """List base policies, oldest first. JSON: {policies}."""
    with existing_platform().ledger.snapshot() as tx:
        found = tx.catalog.base_policies()
    if as_json:
        terminal.emit({"policies": found})
        return
    terminal.show_table(
        ("model", "family", "parameters", "context", "digest"),
        [
            (f"base:{item.name}", item.family, f"{item.n_parameters:,}", str(item.context_tokens), item.digest[:12])
            for item in found
        ],
        right=frozenset({"parameters", "context"}),
        empty="No base policy yet: synth policy make @examples/base-policy.json",
    )
