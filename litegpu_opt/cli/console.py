"""Screen policy: colour and redraw only on a terminal, plain ASCII elsewhere, any width."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.box import Box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text

from ..report.document import Section, Table, json_text


PIPED_COLUMNS = 120
LEAST_COLUMNS = 40
SECONDS_BETWEEN_LINES = 5.0

_RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
"""A line of dashes under the header, and nothing else."""
_PADDING = 2

Report = Callable[[str, int, int], None]
"""Stage, done, total."""


class _Screen(Console):
    """A console that leaves a closed pipe to `main`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(stream: Any = None) -> Console:
    """A console for stdout, or another stream, under the policy."""
    stream = stream or sys.stdout
    terminal = stream.isatty()
    stated = os.environ.get("COLUMNS", "")
    width = None if terminal else PIPED_COLUMNS
    if re.fullmatch(r"0*[1-9][0-9]{0,5}", stated):
        width = max(int(stated), LEAST_COLUMNS)
    plain = not terminal or "NO_COLOR" in os.environ
    return _Screen(
        file=stream,
        width=width,
        force_terminal=terminal,
        color_system=None if plain else "auto",
        markup=False,
        emoji=False,
        highlight=False,
    )


def show(sections: Iterable[Section]) -> None:
    """Print sections on stdout."""
    screen = console()
    for number, section in enumerate(sections):
        if number:
            screen.print()
        screen.print(Text(section.heading, style="bold"))
        for block in section.blocks:
            if isinstance(block, Table):
                _print_table(screen, block)
            else:
                screen.print(Text(block))


def show_json(content: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print(json_text(content))


def _print_table(screen: Console, table: Table) -> None:
    if table.title:
        screen.print()
        screen.print(Text(table.title, style="italic"))
    labels = max(len(row[0]) for row in (table.columns, *table.rows))
    for columns in _parts(table, screen.width):
        printed = RichTable(
            box=_RULE, show_edge=False, pad_edge=False, header_style="bold", padding=(0, 1)
        )
        for column in columns:
            right = table.numeric and column > 0
            printed.add_column(
                Text(table.columns[column]),
                justify="right" if right else "left",
                # a name cut in two is not found again
                no_wrap=right or (column == 0 and labels <= screen.width // 3),
                overflow="fold",
            )
        for row in table.rows:
            printed.add_row(*(Text(row[column]) for column in columns))
        screen.print(printed)


def _parts(table: Table, width: int) -> Iterator[tuple[int, ...]]:
    """Columns of one or more tables that fit the width, each with the labels in front."""
    if not table.numeric:
        yield tuple(range(len(table.columns)))
        return
    natural = [
        max(len(row[column]) for row in (table.columns, *table.rows)) + _PADDING
        for column in range(len(table.columns))
    ]
    room = width - min(natural[0], width // 2)
    part: list[int] = []
    used = 0
    for column in range(1, len(natural)):
        if part and used + natural[column] > room:
            yield (0, *part)
            part, used = [], 0
        part.append(column)
        used += natural[column]
    yield (0, *part)


@contextmanager
def progress(title: str, *, quiet: bool) -> Iterator[Report]:
    """Progress on stderr: a bar on a terminal, else a line at most every few seconds.

    **Arguments:**

    - `title`: shown until the first stage reports.
    - `quiet`: print nothing where stderr is no terminal.
    """
    if sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(
            *columns, TimeElapsedColumn(), console=console(sys.stderr), transient=True
        ) as bar:
            task = bar.add_task(title, total=None)
            yield lambda stage, done, total: bar.update(
                task, description=stage, completed=done, total=total
            )
    elif quiet:
        yield lambda stage, done, total: None
    else:
        yield _lines(title)


@contextmanager
def leaving_on_interrupt(code: int) -> Iterator[None]:
    """Let Ctrl-C end the process at once: a thread inside XLA cannot be interrupted."""

    def leave(*_: Any) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\x1b[?25h\n")  # the progress bar hides the cursor
            sys.stderr.flush()
        os._exit(code)

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _lines(title: str) -> Report:
    began = last = time.monotonic()
    print(title, file=sys.stderr, flush=True)

    def report(stage: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            print(f"{stage} {done}/{total}, {now - began:.0f} s", file=sys.stderr, flush=True)

    return report
