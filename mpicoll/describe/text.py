"""Space-time pictures of schedules: one column per rank, time going down, messages as arrows.

draw() returns plain text, render() the same in colour for a terminal made with rich; svg.py has a drawing.
All show the same thing: which blocks each message carries, whether they are reduced or take the place of
what was there, and after each step the contributors of every block that a rank has just got.

Where a picture would be too large to read, text turns into a table in bands and the drawing drops its
labels; both say what they leave out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from ..proofs.determinism import describe_reduction
from ..proofs.symbolic import Message
from ..schedules.schedule import Schedule
from .picture import Note, Picture, clip, legend, many, names, ranks, strand_labels

# -- a canvas of characters -----------------------------------------------------------------------------------

LEFT = 6  # columns for the step numbers
ARROWS_PER_STEP = 24  # lines of arrows in one step
WIDEST = 240  # of text that no terminal bounds
STRAND_STYLES = ("cyan", "yellow", "magenta", "green", "blue", "red")


class _Canvas:
    """Lines of styled characters."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.lines: list[list[tuple[str, str]]] = []

    def line(self, text: str = "", style: str = "") -> int:
        """Begin a new line; return its number."""
        self.lines.append([(" ", "")] * self.width)
        self.put(len(self.lines) - 1, 0, text, style)
        return len(self.lines) - 1

    def put(self, y: int, x: int, text: str, style: str = "") -> None:
        """Write over what is there."""
        for i, char in enumerate(text[: self.width - x]):
            self.lines[y][x + i] = (char, style)

    def rows(self) -> Iterator[list[tuple[str, str]]]:
        """Yield the lines without the space at their ends."""
        for line in self.lines:
            end = max((i + 1 for i, (char, _) in enumerate(line) if char != " "), default=0)
            yield line[:end]

    def plain(self) -> str:
        return "\n".join("".join(char for char, _ in row) for row in self.rows()) + "\n"


class _SpaceTime:
    """The picture with arrows: each step's messages, then what the ranks got."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        notes = [len(note.text) for some in picture.notes.values() for note in some]
        labels = [len(names(m.blocks)) + 5 for at in picture.messages.values() for m in at]
        self.column = min(26, max([8, *(n + 2 for n in notes), *labels]))
        self.width = LEFT + self.column * picture.p

    def paint(self) -> _Canvas:
        """Draw every step."""
        self.canvas = _Canvas(self.width)
        y = self.canvas.line("rank", "dim")
        for rank in range(self.picture.p):
            self._centred(y, rank, str(rank), "bold")
        for t in range(1, self.picture.steps + 1):
            self._lifelines("dim")
            self._step(t)
        return self.canvas

    def x(self, rank: int) -> int:
        """Return where a rank's line is."""
        return LEFT + rank * self.column + self.column // 2

    def _centred(self, y: int, rank: int, text: str, style: str) -> None:
        text = clip(text, self.column - 1)
        self.canvas.put(y, max(LEFT, self.x(rank) - len(text) // 2), text, style)

    def _lifelines(self, style: str) -> int:
        y = self.canvas.line()
        for rank in range(self.picture.p):
            self.canvas.put(y, self.x(rank), "│", style)
        return y

    def _step(self, t: int) -> None:
        packed = pack(self.picture.messages[t])
        for i, messages in enumerate(packed[:ARROWS_PER_STEP]):
            y = self._lifelines("dim")
            if i == 0:
                self.canvas.put(y, 0, f"{t:>4}", "bold")
            for message in messages:
                self._arrow(y, message)
        if len(packed) > ARROWS_PER_STEP:
            hidden = sum(map(len, packed[ARROWS_PER_STEP:]))
            self.canvas.line(f"      … {many(hidden, 'more message')} in this step left out", "dim")
        self._notes(t)

    def _arrow(self, y: int, message: Message) -> None:
        a, b = self.x(message.source), self.x(message.destination)
        style = STRAND_STYLES[message.strand % len(STRAND_STYLES)]
        room = abs(b - a) - 1
        label = clip(names(message.blocks), room - 3)
        dash = "─" if message.reduces else "╌"
        body = f"{f' {label} ' if label else '':{dash}^{room - 1}}"
        self.canvas.put(y, min(a, b) + 1, body + "▶" if b > a else "◀" + body, style)
        self._end(y, a, "├" if b > a else "┤", style)
        self.canvas.put(y, b, "⊕" if message.reduces else "●", style)

    def _end(self, y: int, x: int, char: str, style: str) -> None:
        """Paint an arrow's tail; another one there joins it, and a head stays."""
        there = self.canvas.lines[y][x][0]
        if there in "├┤":
            char = char if there == char else "┼"
        if there not in "⊕●":
            self.canvas.put(y, x, char, style)

    def _notes(self, t: int) -> None:
        columns = [self.picture.notes.get((t, rank), []) for rank in range(self.picture.p)]
        for i in range(max(map(len, columns), default=0)):
            y = self._lifelines("dim")
            for rank, notes in enumerate(columns):
                if i < len(notes):
                    self._centred(y, rank, notes[i].text, "bold green" if notes[i].done else "")


def pack(messages: Iterable[Message]) -> list[list[Message]]:
    """Arrange messages in lines so that none crosses another in its line, placing short ones first."""
    lines: list[list[Message]] = []
    order = sorted(messages, key=lambda m: (abs(m.source - m.destination), m.strand, min(m.source, m.destination)))
    for message in order:
        free = (line for line in lines if not any(_overlap(message, other) for other in line))
        line = next(free, None)
        if line is None:
            lines.append(line := [])
        line.append(message)
    return lines


def _overlap(a: Message, b: Message) -> bool:
    """Return whether two messages share more than a rank's line, or would mark one rank's line in two ways."""
    if a.destination == b.destination and a.reduces != b.reduces:
        return True
    low, high = max(min(a.source, a.destination), min(b.source, b.destination)), 0
    high = min(max(a.source, a.destination), max(b.source, b.destination))
    return low < high


# -- a table, where the picture is too wide ---------------------------------------------------------------------

TABLE_STEPS, TABLE_BANDS, TABLE_LINES = 32, 4, 4


class _Table:
    """A table of the arrivals at each rank in each step, in bands of ranks; a long table omits its middle."""

    def __init__(self, picture: Picture, width: int) -> None:
        self.picture = picture
        cells = [len(_cell(note)) for some in picture.notes.values() for note in some]
        self.column = min(28, max([8, *(n + 2 for n in cells)]))
        self.per_band = max(1, (width - LEFT) // self.column)
        self.width = max(width, LEFT + self.column)

    def paint(self) -> _Canvas:
        """Return the canvas with the bands that are shown."""
        self.canvas = _Canvas(self.width)
        p = self.picture.p
        bands = [range(a, min(a + self.per_band, p)) for a in range(0, p, self.per_band)]
        shown = bands if len(bands) <= TABLE_BANDS else [*bands[: TABLE_BANDS - 1], bands[-1]]
        for band in shown:
            if band is bands[-1] and len(shown) < len(bands):
                hidden = f"{shown[-2].stop}-{band.start - 1}"
                self.canvas.line(f"… ranks {hidden} left out", "dim")
                self.canvas.line()
            self._band(band)
        return self.canvas

    def _band(self, band: range) -> None:
        y = self.canvas.line("step", "dim")
        for rank in band:
            self.canvas.put(y, self._x(band, rank), f"rank {rank}", "bold")
        steps, half = self.picture.steps, TABLE_STEPS // 2
        for t in range(1, steps + 1):
            if steps <= TABLE_STEPS or t <= half or t > steps - half:
                self._step(t, band)
            elif t == half + 1:
                hidden = sum(len(self.picture.messages[x]) for x in range(t, steps - half + 1))
                self.canvas.line(f"   … steps {t}-{steps - half} left out ({many(hidden, 'message')})", "dim")
        self.canvas.line()

    def _x(self, band: range, rank: int) -> int:
        return LEFT + (rank - band.start) * self.column

    def _step(self, t: int, band: range) -> None:
        first = self.canvas.line(f"{t:>4}", "bold")
        for rank in band:
            notes = self.picture.notes.get((t, rank), [])
            shown = notes if len(notes) <= TABLE_LINES else notes[: TABLE_LINES - 1]
            cells = [(_cell(note), _note_style(note)) for note in shown]
            if len(shown) < len(notes):
                cells.append((f"  +{len(notes) - len(shown)} more", "dim"))
            for i, (text, style) in enumerate(cells):
                if first + i == len(self.canvas.lines):
                    self.canvas.line()
                self.canvas.put(first + i, self._x(band, rank), clip(text, self.column - 2), style)


def _note_style(note: Note) -> str:
    return "bold green" if note.done else STRAND_STYLES[note.strand % len(STRAND_STYLES)]


def _cell(note: Note) -> str:
    """Return one note with the sources of its messages: 4⊕b3: 3-4."""
    return f"{ranks(note.sources)}{'⊕' if note.reduces else '▸'}{note.text}"


# -- text and render --------------------------------------------------------------------------------------------


Styled = list[tuple[str, str]]


def _paint(schedule: Schedule, width: int | None) -> tuple[Styled, _Canvas]:
    """Return the text above the picture, in pieces with their styles, and the picture."""
    picture = Picture(schedule)
    room = width or WIDEST
    drawing: _SpaceTime | _Table = _SpaceTime(picture)
    if drawing.width > room:
        drawing = _Table(picture, room if width else 120)
    key = textwrap.fill(legend(picture, isinstance(drawing, _Table)), min(room, 120))
    head = [(f"{picture.headline}\n", "bold"), (f"{schedule.algorithm.claims.idea}\n", ""), (f"{key}\n", "dim")]
    if order := describe_reduction(schedule):
        head.append((f"{textwrap.fill(order, min(room, 120))}\n", "dim"))
    for i, (strand, label) in enumerate(strand_labels(picture).items()):
        head += [(" · ", "dim")] * bool(i) + [(label, STRAND_STYLES[strand % len(STRAND_STYLES)])]
    return [*head, ("\n\n" if len(picture.strands) > 1 else "\n", "")], drawing.paint()


def draw(schedule: Schedule, width: int | None = None) -> str:
    """Return the picture as plain text; in a width that does not hold it, a table."""
    head, canvas = _paint(schedule, width)
    return "".join(words for words, _ in head) + canvas.plain()


def render(schedule: Schedule, width: int | None = None) -> Any:
    """Return the picture in colour, for rich's Console.print: strands differ in colour, what is complete is green."""
    from rich.text import Text

    head, canvas = _paint(schedule, width)
    out = Text(no_wrap=True, overflow="ignore", end="")
    for row in (head, *([*row, ("\n", "")] for row in canvas.rows())):
        for words, style in row:
            out.append(words, style)
    return out
