"""Templates into pages that need nothing from anywhere else."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from adapters.reports import formats
from domain.records.wording import counted, without_documents


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        score=formats.score,
        signed=formats.signed,
        count=formats.count,
        number=formats.number,
        duration=formats.duration,
        when=formats.when,
        told=without_documents,
    )
    return environment


def render(template: str, **values: object) -> str:
    """Return the page; every value is escaped."""
    return _environment().get_template(template).render(counted=counted, **values)
