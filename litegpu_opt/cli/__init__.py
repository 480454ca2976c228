"""The command line: `litegpu`. Exit codes: 0 done, 1 bug, 2 user error, 3 nothing feasible.

Commands are imported when they run and import heavy modules in their bodies, so that `--help`
answers at once.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from cyclopts import App, CycloptsError

from .. import __version__
from ..errors import UserError


USER_ERROR = 2
NOTHING_FEASIBLE = 3
INTERRUPTED = 130
BROKEN_PIPE = 141

app = App(
    name="litegpu",
    help="Which accelerator should be built to serve an LLM, and how good is the answer?",
    version=__version__,
    version_flags="--version",
    help_formatter="plain",
    help_format="plaintext",
    result_action="return_value",
)
app.command(
    f"{__name__}.evaluate:evaluate",
    name="evaluate",
    help="One accelerator, one model, one deployment: time, cost, energy, memory.",
)
app.command(
    f"{__name__}.optimize:optimize",
    name="optimize",
    help="Search the best accelerators of a study and certify them.",
)
catalog = App(
    name="catalog",
    help="Models, accelerators and technologies, with source and trust.",
    help_formatter="plain",
)
for _name in ("models", "accelerators", "technologies"):
    catalog.command(f"{__name__}.catalog:{_name}", name=_name, help=f"List {_name}, or show one.")
app.command(catalog)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit.

    **Arguments:**

    - `argv`: the words after the program's name; those of the process by default.
    """
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader has gone: keep the interpreter from failing again when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = BROKEN_PIPE
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    try:
        return app(arguments, exit_on_error=False, print_error=False) or 0
    except CycloptsError as error:
        message = str(error)
    except UserError as error:
        message = str(error)
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return USER_ERROR
