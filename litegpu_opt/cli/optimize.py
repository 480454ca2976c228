"""`litegpu optimize`."""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token

from ..errors import UserError
from ..units import shown
from .options import Json, whole


FILES = ("result.json", "report.md", "study.toml")
"""What `--out` holds."""


def folder(_: Any, tokens: Sequence[Token]) -> Path:
    text = tokens[0].value
    if not text or "\0" in text:
        raise UserError(f"{shown(text)} is not a path", where="--out", allowed="a folder")
    return Path(text)


def optimize(
    study: Annotated[
        str | None,
        Parameter(help="Study file (TOML); the embedded panel of three workloads without one."),
    ] = None,
    *,
    out: Annotated[
        Path | None,
        Parameter(
            help="Folder for study.toml, result.json, report.md, designs/ and figures/.",
            converter=folder,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        Parameter(
            help="Seed of the starts, 0 to 4294967295, in place of the study's.",
            converter=whole(0, 2**32 - 1),
        ),
    ] = None,
    starts: Annotated[
        int | None,
        Parameter(
            help="Random starts of each branch, 1 to 64, in place of the study's.",
            converter=whole(1, 64),
        ),
    ] = None,
    explain_infeasible: Annotated[
        bool,
        Parameter(
            help="Where nothing is feasible: the smallest relaxation of every limit, physics and "
            "market too. Without it, of the study's own limits.",
            negative="",
        ),
    ] = False,
    as_json: Json = False,
) -> int:
    """Search the best accelerators of a study on each of its workloads, and certify them.

    Exit code 3 where no candidate can serve a workload.
    """
    from ..study import load_study, resolved_toml, study_hash

    asked = load_study(study)
    options = {"seed": seed, "starts": starts}
    changed = {key: value for key, value in options.items() if value is not None}
    asked = asked.model_copy(update=changed)
    if out is not None:
        _check_folder(out, study_hash(asked))

    from . import INTERRUPTED
    from .cache import enable_compilation_cache, trace_quickly
    from .console import leaving_on_interrupt, progress, show, show_json

    title = "compiling and searching; the first run takes about a minute"
    with leaving_on_interrupt(INTERRUPTED), progress(title, quiet=as_json) as report:
        enable_compilation_cache()
        trace_quickly()
        from ..optimizer.panel import optimize as search
        from ..report.panel import panel_sections
        from ..report.result_json import panel_json

        result = search(asked, report, explain_infeasible=explain_infeasible)
    content = panel_json(result, dict.fromkeys(changed, "flag"))
    if out is not None:
        _write(out, resolved_toml(asked, changed), content)
    if as_json:
        show_json(content)
    else:
        show(panel_sections(content))
        if out is not None:
            print(f"\nwritten: {out / 'report.md'}, {out / 'result.json'}, {out / 'study.toml'}")
    return _exit_code(content)


def _check_folder(folder: Path, asked_hash: str) -> None:
    """Refuse a folder that cannot take the results, before a search that would be lost."""
    from ..study import load_study, study_hash

    where = "--out"
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is not a folder", where=where)
        for name in FILES:
            if (folder / name).is_dir():
                raise UserError(
                    f"{folder / name} is a folder", where=where, allowed="a file, or nothing there"
                )
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
        present = folder / "study.toml"
        if not present.exists():
            return
    except OSError as error:
        reason = error.strerror or "not a path"
        raise UserError(f"{folder} cannot be written: {reason}", where=where) from None
    try:
        same = study_hash(load_study(present)) == asked_hash
    except UserError:
        same = False
    if not same:
        raise UserError(
            f"{folder} holds the results of another study ({present})",
            where=where,
            allowed="an empty or new folder, or that of the same study",
        )


def _write(folder: Path, study_text: str, content: dict[str, Any]) -> None:
    from ..files import write_atomic
    from ..report.design_file import design_files
    from ..report.document import json_text
    from ..report.figures import draw, front_figures
    from ..report.markdown import markdown_report

    write_atomic(folder / "result.json", json_text(content) + "\n")
    write_atomic(folder / "report.md", markdown_report(content))
    designs = folder / "designs"
    designs.mkdir(exist_ok=True)
    for name, text in design_files(content):
        write_atomic(designs / name, text)
    for name, figure in front_figures(content):
        figures = folder / "figures"
        figures.mkdir(exist_ok=True)
        draw(figure, figures, name)
    write_atomic(folder / "study.toml", study_text)


def _exit_code(content: dict[str, Any]) -> int:
    """3, with the reasons on stderr, where a workload has no feasible candidate."""
    from ..report.findings import infeasible_texts, open_branches
    from . import NOTHING_FEASIBLE

    hopeless = [workload for workload in content["panel"] if not workload["optima"]]
    for workload in hopeless:
        verdict = (
            "no feasible candidate found"
            if any(open_branches(entry) for entry in workload["infeasible"])
            else "nothing feasible"
        )
        print(f"{verdict} for workload {workload['workload']}", file=sys.stderr)
        for entry in workload["infeasible"]:
            for text in infeasible_texts(entry):
                print(f"  {entry['name']}: {text}", file=sys.stderr)
    return NOTHING_FEASIBLE if hopeless else 0
