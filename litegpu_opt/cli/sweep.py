"""`litegpu sweep`, `litegpu sweep merge`."""

import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, Token

from ..errors import UserError
from ..units import shown
from .optimize import folder
from .options import Json


if TYPE_CHECKING:
    from ..sweep.run import Progress


SECONDS_BETWEEN_LINES = 2.0
_SHARD = re.compile(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})")


def _shard(_: Any, tokens: Sequence[Token]) -> tuple[int, int]:
    match = _SHARD.fullmatch(tokens[0].value)
    if not match or int(match[1]) > int(match[2]):
        what = f"{shown(tokens[0].value)} is no shard"
        raise UserError(what, where="--shard", allowed="i/n with i from 1 to n, such as 2/8")
    return int(match[1]), int(match[2])


Out = Parameter(help="Folder of the results; the same one to go on.", converter=folder)


def sweep(
    study: Annotated[str, Parameter(help="Study file (TOML) with a table [sweep].")],
    *,
    out: Annotated[Path | None, Out] = None,
    dry_run: Annotated[
        bool, Parameter(negative="", help="Points, files, memory and time, and nothing else.")
    ] = False,
    x64: Annotated[
        bool, Parameter(name="--x64", negative="", help="Double precision instead of single.")
    ] = False,
    executor: Annotated[
        Literal["local", "ray"], Parameter(help="Who works out the parts [default: local].")
    ] = "local",
    address: Annotated[
        str | None, Parameter(help="Address of a Ray cluster; one of this machine without.")
    ] = None,
    shard: Annotated[
        tuple[int, int],
        Parameter(help="i/n: only every n-th part, for job arrays.", converter=_shard, n_tokens=1),
    ] = (1, 1),
    as_json: Json = False,
) -> int:
    """Visit every point of a grid of designs and deployments, and keep what the study asks for.

    A run that is stopped goes on where it was when it is started again. Exit code 3 where no point
    is feasible.
    """
    from ..study import load_study

    asked = load_study(study)
    if out is None and not dry_run:
        raise UserError("missing", where="--out", allowed="a folder")
    if address is not None and executor != "ray":
        raise UserError("only for --executor ray", where="--address")

    from . import INTERRUPTED
    from .cache import enable_compilation_cache
    from .console import leaving_on_interrupt, show, show_json

    with leaving_on_interrupt(INTERRUPTED):
        enable_compilation_cache()
        from ..sweep.run import dry_run as try_out
        from ..sweep.run import sweep as run

        if dry_run or out is None:
            content = try_out(asked, x64=x64)
            if as_json:
                show_json(content)
            else:
                from ..report.sweep import dry_run_sections

                show(dry_run_sections(content))
            return 0
        spread = None
        if executor == "ray":
            from ..sweep.distribute import ray_spread

            spread = ray_spread(asked, x64=x64, address=address)
        print("compiling; then a line now and then", file=sys.stderr, flush=True)
        result = run(asked, out, x64=x64, shard=shard, report=_reporter(), spread=spread)
    if result is None:
        print("this shard is done; others are missing", file=sys.stderr)
        return 0
    return _shown(result, out, as_json)


def merge(
    *folders: Annotated[
        Path, Parameter(help="Folders of the shards of one sweep.", converter=folder)
    ],
    out: Annotated[Path | None, Out] = None,
    as_json: Json = False,
) -> int:
    """Put the parts of shards together into one result, in the first folder or --out."""
    if not folders:
        raise UserError("missing", where="folders", allowed="folders of the shards of one sweep")
    from .cache import enable_compilation_cache

    enable_compilation_cache()
    from ..sweep.distribute import merge as put_together

    target = out or folders[0]
    return _shown(put_together(folders, target), target, as_json)


def _reporter() -> Callable[["Progress"], None]:
    """Progress on stderr: one line that is redrawn on a terminal, else a line now and then."""
    redraw = sys.stderr.isatty()
    last = 0.0

    def report(progress: "Progress") -> None:
        nonlocal last
        now, over = time.monotonic(), progress.done >= progress.total
        if now - last < SECONDS_BETWEEN_LINES and last and not over:
            return
        last = now
        left = "?" if progress.left_s == float("inf") else f"{progress.left_s:.0f} s"
        line = (
            f"{progress.done:.4g} of {progress.total:.4g} points, {progress.per_s:.3g} points/s, "
            f"ETA {left}, feasible {100.0 * progress.feasible / max(progress.done, 1):.3g} %, "
            f"best {progress.best:.6g}, compiled in {progress.compile_s:.1f} s"
        )
        start, end = ("\r\x1b[K", "\n" if over else "") if redraw else ("", "\n")
        print(f"{start}{line}", end=end, file=sys.stderr, flush=True)

    return report


def _shown(result: dict[str, Any], out: Path, as_json: bool) -> int:
    from ..report.sweep import sweep_sections
    from . import NOTHING_FEASIBLE
    from .console import show, show_json

    if as_json:
        show_json(result)
    else:
        show(sweep_sections(result))
        print(f"\nwritten: {out / 'result.json'}")
    if result["feasible"]:
        return 0
    print("nothing feasible", file=sys.stderr)
    return NOTHING_FEASIBLE
