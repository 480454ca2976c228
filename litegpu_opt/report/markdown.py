"""The report of a study as Markdown, from the same sections as the screen."""

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..catalog import TRUST
from .asked import asked
from .document import Table
from .panel import assumptions_table, caveats, workload_section


def markdown_report(content: Mapping[str, Any]) -> str:
    """The report of a result, from what `panel_json` returns."""
    environment = Environment(
        loader=PackageLoader("litegpu_opt.report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["markdown"] = markdown_block
    return environment.get_template("report.md.j2").render(
        result=content,
        asked=asked(content),
        workloads=[(workload, workload_section(workload)) for workload in content["panel"]],
        caveats=caveats(content),
        assumptions_table=assumptions_table,
        trust=TRUST,
    )


def markdown_block(block: Table | str) -> str:
    """A paragraph as it is, a table as a pipe table."""
    if isinstance(block, str):
        return block
    rule = ["---:" if block.numeric and column else "---" for column in range(len(block.columns))]
    rows = (block.columns, tuple(rule), *block.rows)
    lines = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    title = [f"**{block.title}**", ""] if block.title else []
    return "\n".join([*title, *lines])


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|")
