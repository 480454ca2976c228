"""The command line: `litegpu`. Exit codes: 0 done, 1 bug, 2 user error, 3 nothing feasible.

Commands are imported when they run and import heavy modules in their bodies, so that `--help`
answers at once.
"""

import contextlib
import errno
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from cyclopts import App, CycloptsError
from cyclopts.exceptions import MissingArgumentError

from .. import __version__
from ..errors import UserError
from .sweep import sweep


USER_ERROR = 2
NOTHING_FEASIBLE = 3
INTERRUPTED = 130
BROKEN_PIPE = 141

DEBUG = "--debug"

_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
_SCREEN_SIZE = re.compile(r"0*[1-9][0-9]{0,5}")

app = App(
    name="litegpu",
    help="Which accelerator should be built to serve an LLM, and how good is the answer?",
    version=__version__,
    version_flags="--version",
    help_formatter="plain",
    help_format="plaintext",
    help_epilogue=f"{DEBUG}, with any command: the traceback of an error as well.",
    result_action="return_value",
)
app.command(
    f"{__name__}.evaluate:evaluate",
    name="evaluate",
    help="One chip, one model, one deployment: time, cost, energy, memory.",
)
app.command(
    f"{__name__}.optimize:optimize",
    name="optimize",
    help="Search the best accelerators of a study and certify them.",
)
app.command(
    f"{__name__}.explain:explain",
    name="explain",
    help="A metric's formula with an accelerator's numbers in it, line by line, and sources.",
)
landscape = App(
    name="sweep",
    help="Every point of a grid of designs and deployments: best, fronts, maps, or all rows.",
    help_formatter="plain",
)
landscape.default(sweep)
landscape.command(f"{__name__}.sweep:merge", name="merge", help="Put shards of one sweep together.")
app.command(landscape)
catalog = App(
    name="catalog",
    help="Models, accelerators and technologies, with source and trust.",
    help_formatter="plain",
)
for _name in ("models", "accelerators", "technologies"):
    catalog.command(f"{__name__}.catalog:{_name}", name=_name, help=f"List {_name}, or show one.")
app.command(catalog)
validate = App(
    name="validate",
    help="The model against what is known of real chips.",
    help_formatter="plain",
)
validate.command(
    f"{__name__}.validate:machine",
    name="machine",
    help="Area, peaks, bandwidth, TDP and bill of materials against every chip of the catalogue.",
)
validate.command(
    f"{__name__}.validate:kernels",
    name="kernels",
    help="Times of measured kernels that no fit has used.",
)
validate.command(
    f"{__name__}.validate:serving",
    name="serving",
    help="Times of measured requests that no fit has used.",
)
app.command(validate)
app.command(
    f"{__name__}.calibrate:calibrate",
    name="calibrate",
    help="Fit the execution model to your own measured kernels.",
)
app.command(
    f"{__name__}.schema:schema",
    name="schema",
    help="JSON Schema of a study or accelerator file.",
)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit.

    **Arguments:**

    - `argv`: the words after the program's name; those of the process by default.
    """
    if sys.stderr is None:  # closed by the shell
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    if sys.stdout is None:
        sys.exit(_failed("cannot write: stdout is closed"))
    for name in ("COLUMNS", "LINES"):  # libraries read them too, and fail on odd digits
        if not _SCREEN_SIZE.fullmatch(os.environ.get(name, "")):
            os.environ.pop(name, None)
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        code = BROKEN_PIPE
    except KeyboardInterrupt:
        code = INTERRUPTED
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        _discard_stdout()
        code = _failed(f"cannot write: {error.strerror}")
    sys.exit(code)


def _discard_stdout() -> None:
    """Keep the interpreter from failing again when it flushes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    words = [word for word in arguments if word != DEBUG]
    try:
        return app(words, exit_on_error=False, print_error=False) or 0
    except (CycloptsError, UserError) as error:
        if isinstance(error, MissingArgumentError) and not error.tokens_so_far and error.argument:
            error = _missing(error.argument.name, error.command_chain)
        if len(words) < len(arguments):
            traceback.print_exc()
        return _failed(str(error))


def _missing(option: str, commands: Sequence[str] | None) -> UserError:
    """A `UserError` for an option that has to be given, or has no value."""
    command = " ".join(["litegpu", *(commands or ())])
    return UserError("missing", where=option, allowed=f"what `{command} --help` says")


def _failed(message: str) -> int:
    with contextlib.suppress(OSError):
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return USER_ERROR
