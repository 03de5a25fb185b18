"""The space-time picture of a schedule as a self-contained SVG document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..errors import MpicollError
from ..proofs.symbolic import Message
from ..proofs.values import contributors
from ..schedules.schedule import Schedule
from .picture import Note, Picture, clip, legend, many, names, ranks, strand_labels

STRAND_COLOURS = ("#0b64b0", "#c2500a", "#7a3f9d", "#00806a", "#a4234f", "#5b6200")
INK, FAINT, GREEN, PAPER = "#1c2733", "#5d6975", "#17803d", "#ffffff"
FONT, SIZE = "Helvetica, Arial, 'DejaVu Sans', sans-serif", 11.5
ADVANCE = 0.6  # width of a character, in font sizes
LINE = 17  # from one note to the next below it
NOTES_SHOWN, NOTE_WIDTH, MESSAGES_LABELLED = 5, 24, 700
TRIES = (0.3, 0.2, 0.4, 0.25, 0.15, 0.5, 0.6, 0.7, 0.8)  # positions of a label along its arrow


def svg(schedule: Schedule) -> str:
    """Return the picture as a self-contained SVG document; point at an arrow to read all it carries.

    Raises MpicollError, saying what to install, when drawsvg is missing.
    """
    try:
        import drawsvg
    except ImportError:
        raise MpicollError("drawing SVG needs drawsvg: pip install mpicoll[svg]") from None
    return _Drawing(drawsvg, Picture(schedule)).paint()


class _Label(NamedTuple):
    """A message's blocks, and their position: the middle of the text."""

    text: str
    x: float
    y: float
    colour: str

    def hits(self, other: _Label) -> bool:
        """Return whether the two are in each other's way."""
        apart = (len(self.text) + len(other.text)) / 2 * ADVANCE * SIZE + 3
        return abs(self.x - other.x) < apart and abs(self.y - other.y) < SIZE + 1.5


class _Drawing:
    """Lays a picture out on paper: each step a band, each rank a vertical line."""

    left, margin = 84, 24
    unlabelled = 0  # labels that found no room

    def __init__(self, drawsvg: Any, picture: Picture) -> None:
        self.dw, self.picture = drawsvg, picture
        self.labelled = picture.total <= MESSAGES_LABELLED
        self.strands = strand_labels(picture)
        self.top = 134 if picture.schedule.collective.reduces or self.strands else 112
        self.column = self._column()
        self.bands = self._bands()
        self.labels = [x for at in picture.messages.values() for x in self._labels(at)] if self.labelled else []
        named = sum(bool(m.blocks) for at in picture.messages.values() for m in at)
        self.unlabelled = named - len(self.labels)
        self.width = round(max(self.left + self.column * picture.p + self.margin, self._heading()))
        self.height = self.bands[-1] + 20

    # -- layout

    def _heading(self) -> float:
        """Return the width of the words on top."""
        idea = self.picture.schedule.algorithm.claims.idea
        sizes = ((19, self.picture.headline), (13, idea), (12, self.key()))
        return 30 + max(ADVANCE * size * len(words) for size, words in sizes)

    def _column(self) -> int:
        """Return the distance between ranks: room for their notes, and for few ranks the width of the heading."""
        notes = [len(clip(note.text, NOTE_WIDTH)) for some in self.picture.notes.values() for note in some]
        room = 30 + ADVANCE * SIZE * max([6, *notes]) if self.labelled else 34
        return round(max(room, min((self._heading() - self.left - self.margin) / self.picture.p, 190)))

    def _bands(self) -> list[int]:
        """Return where each step begins, and where the last one ends: more room where more arrows cross."""
        edges = [self.top]
        for t in range(1, self.picture.steps + 1):
            messages = self.picture.messages[t]
            reach = max((abs(m.source - m.destination) for m in messages), default=0)
            crowd = len(messages) / self.picture.p
            room = round(min(3 * reach + 10 * max(0, crowd - 1), 120))
            edges.append(edges[-1] + 62 + room + LINE * self._lines(t))
        return edges

    def _lines(self, t: int) -> int:
        """Return how many lines the notes of a step take."""
        most = max((len(self.picture.notes.get((t, rank), ())) for rank in range(self.picture.p)), default=0)
        return min(most, NOTES_SHOWN + 1) if self.labelled else 0

    def x(self, rank: int) -> int:
        """Return where a rank's line is."""
        return self.left + self.column * rank + self.column // 2

    def arrival(self, t: int) -> int:
        """Return the height at which a step's messages arrive, above its notes."""
        return self.bands[t] - 14 - LINE * self._lines(t)

    def ends(self, message: Message) -> tuple[float, float, float, float]:
        """Return the ends of an arrow, (sender, start) and (receiver, end); strands arrive beside each other."""
        t, to = message.start + 1, self.x(message.destination)
        same = [m for m in self.picture.messages[t] if m.destination == message.destination] if self.strands else []
        if len(same) > 1:
            order = sorted(same, key=lambda m: (m.source, m.strand)).index(message)
            to += round(min(16, 48 / len(same)) * (order - (len(same) - 1) / 2))
        return self.x(message.source), self.bands[t - 1] + 9, to, self.arrival(t)

    def _labels(self, messages: Sequence[Message]) -> Iterator[_Label]:
        """Return the labels for one step's arrows, each where fewest arrows cross it and no label is; else none."""
        placed: list[_Label] = []
        lines = [self.ends(m) for m in messages]
        for message, line in zip(messages, lines, strict=True):
            tries = [x for x in self._tries(message, line) if not any(x.hits(other) for other in placed)]
            if tries:
                others = [other for other in lines if other != line]
                placed.append(min(tries, key=lambda x: sum(_crosses(other, x) for other in others)))
        yield from placed

    def _tries(self, message: Message, line: tuple[float, float, float, float]) -> list[_Label]:
        label = names(message.blocks, 1)
        x1, y1, x2, y2 = line
        points = [(tenths(x1 + at * (x2 - x1)), tenths(y1 + at * (y2 - y1) + 4)) for at in TRIES if label]
        return [_Label(label, x, y, _colour(message.strand)) for x, y in points]

    # -- the sheet

    def paint(self) -> str:
        """Draw it from the paper up: bands, lines, arrows, then all that must stay readable."""
        self.sheet = self.dw.Drawing(self.width, self.height, font_family=FONT)
        self.pills: dict[tuple[str, str], Any] = {}  # their outlines by what they look like
        self.words = self.dw.Group(text_anchor="middle", fill=INK)  # their text
        self.sheet.append(self.dw.Rectangle(0, 0, self.width, self.height, fill=PAPER))
        self._head()
        self._ground()
        messages = [m for at in self.picture.messages.values() for m in at]
        for message in sorted(messages, key=lambda m: -abs(m.source - m.destination)):
            self._message(message)
        self._labels_on_top()
        if self.labelled:
            for (t, rank), notes in self.picture.notes.items():
                self._notes(t, rank, notes)
        self.sheet.extend(self.pills.values())
        self.sheet.append(self.words)
        return str(self.sheet.as_svg())

    def _text(self, words: str, x: float, y: float, size: float = SIZE, into: Any = None, **look: Any) -> None:
        look = look if into else {"fill": INK, **look}
        (into or self.sheet).append(self.dw.Text(words, size, x, y, **look))

    def _head(self) -> None:
        self._text(self.picture.headline, 20, 34, 19, font_weight="bold")
        self._text(self.picture.schedule.algorithm.claims.idea, 20, 55, 13, fill=FAINT)
        self._text(self.key(), 20, 76, 12, fill=FAINT)
        self._legend(20, 98)

    def key(self) -> str:
        if not self.labelled:
            return "Too many messages to label: point at an arrow to read what it carries."
        missing = self.unlabelled
        more = f" {many(missing, 'label')} had no room: point at an arrow to read it." if missing else ""
        words = legend(self.picture, False)
        return words[words.index("Below") :] + more

    def _legend(self, x: float, y: float) -> None:
        reduces = self.picture.schedule.collective.reduces
        for is_reduced, words in ((True, "reduced"), (False, "received")) if reduces else ():
            self._arrow((x, y, x + 36, y), _colour(0), is_reduced, self.sheet)
            self._text(words, x + 48, y + 4, 12)
            x += 124
        if reduces and self.labelled:
            self._pill("complete", x + 30, y, True, _colour(0))
            x += 92
        for strand, label in self.strands.items():
            self.sheet.append(self.dw.Rectangle(x, y - 3, 22, 6, rx=3, fill=_colour(strand)))
            self._text(label, x + 28, y + 4, 12)
            x += 46 + round(ADVANCE * 12 * len(label))

    def _ground(self) -> None:
        for t in range(1, self.picture.steps + 1):
            y, end = self.bands[t - 1], self.bands[t]
            if t % 2:
                self.sheet.append(self.dw.Rectangle(12, y, self.width - 24, end - y, rx=4, fill="#f2f5f8"))
            self._text(f"step {t}", 22, y + 22, 12, fill=FAINT)
        self._text("rank", 22, self.top - 4, 12, fill=FAINT)
        for rank in range(self.picture.p):
            x = self.x(rank)
            self.sheet.append(self.dw.Line(x, self.top, x, self.bands[-1], stroke="#a9b4c0", stroke_width=1.2))
            self.sheet.append(self.dw.Circle(x, self.top - 8, 13, fill=INK))
            self._text(str(rank), x, self.top - 4, 12, fill=PAPER, text_anchor="middle", font_weight="bold")

    # -- arrows

    def _message(self, message: Message) -> None:
        faint = {} if self.labelled else {"opacity": 0.5}
        group = self.dw.Group(class_="message", **faint)
        group.append_title(self._tooltip(message))
        self._arrow(self.ends(message), _colour(message.strand), message.reduces, group)
        self.sheet.append(group)

    def _tooltip(self, message: Message) -> str:
        what = names(message.blocks, len(message.blocks)) or "no blocks"
        held = {ranks(contributors(v)) for v in message.values} if self.picture.schedule.collective.reduces else ()
        whose = f", contributors {' / '.join(sorted(held))}" if held else ""
        how = ", reduced" if message.reduces else ""
        return f"step {message.start + 1}: {message.source} to {message.destination}: {what}{whose}{how}"

    def _arrow(self, line: tuple[float, float, float, float], colour: str, reduces: bool, into: Any) -> None:
        """Draw a solid arrow into a plus for a message that is reduced, a dashed one for one that is only received."""
        x1, y1, x2, y2 = line
        length = max(1.0, ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5)
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        look: dict[str, Any] = {"stroke_width": 2} if reduces else {"stroke_width": 1.6, "stroke_dasharray": "6 4"}
        into.append(self.dw.Line(x1, y1, tenths(x2 - 13 * ux), tenths(y2 - 13 * uy), stroke=colour, **look))
        tip = 6.5 if reduces else 1.0
        x, y = x2 - tip * ux, y2 - tip * uy
        wings = [x - 10 * ux + 4.2 * uy, y - 10 * uy - 4.2 * ux, x - 10 * ux - 4.2 * uy, y - 10 * uy + 4.2 * ux]
        into.append(self.dw.Lines(*map(tenths, (x, y, *wings)), close=True, fill=colour))
        if reduces:
            plus = self.dw.Group(stroke=colour, stroke_width=1.6, fill=PAPER)
            plus.append(self.dw.Circle(x2, y2, 6))
            plus.append(self.dw.Path(d=f"M{x2 - 4:g} {y2:g}h8M{x2:g} {y2 - 4:g}v8"))
            into.append(plus)

    # -- labels

    def _labels_on_top(self) -> None:
        """Draw labels with outlines in the colour of the paper, to keep arrows away from the words."""
        look: dict[str, Any] = {"text_anchor": "middle", "font_weight": "bold"}
        outlines = self.dw.Group(fill=PAPER, stroke=PAPER, stroke_width=4, stroke_linejoin="round", **look)
        by_colour = {label.colour: self.dw.Group(fill=label.colour, **look) for label in self.labels}
        for label in self.labels:
            for group in (outlines, by_colour[label.colour]):
                self._text(label.text, label.x, label.y, into=group)
        self.sheet.extend((outlines, *by_colour.values()))

    def _notes(self, t: int, rank: int, notes: Sequence[Note]) -> None:
        y = self.arrival(t) + 20
        for note in notes[:NOTES_SHOWN]:
            self._pill(clip(note.text, NOTE_WIDTH), self.x(rank), y, note.done, _colour(note.strand))
            y += LINE
        if len(notes) > NOTES_SHOWN:
            self._text(f"+{len(notes) - NOTES_SHOWN} more", self.x(rank), y + 4, into=self.words)

    def _pill(self, words: str, x: float, y: float, done: bool, colour: str) -> None:
        width = round(ADVANCE * SIZE * len(words) + 10)
        fill, stroke = ("#dff3e5", GREEN) if done else (PAPER, colour)
        group = self.pills.setdefault((fill, stroke), self.dw.Group(fill=fill, stroke=stroke))
        group.append(self.dw.Rectangle(x - width // 2, y - 7.5, width, 15, rx=7.5))
        self._text(words, x, y + 4, into=self.words)


def tenths(x: float) -> float:
    """Return a number to a tenth, a whole one without a point: digits are most of a drawing's size.

    >>> tenths(1.234), tenths(2.0)
    (1.2, 2)
    """
    return int(x) if round(x, 1) == int(x) else round(x, 1)


def _colour(strand: int) -> str:
    return STRAND_COLOURS[strand % len(STRAND_COLOURS)]


def _crosses(line: tuple[float, float, float, float], label: _Label) -> bool:
    """Return whether an arrow runs through a label's words."""
    x1, y1, x2, y2 = line
    half = len(label.text) * ADVANCE * SIZE / 2
    lo, hi = max(min(x1, x2), label.x - half), min(max(x1, x2), label.x + half)
    if lo > hi or x1 == x2:
        return False
    heights = [y1 + (x - x1) / (x2 - x1) * (y2 - y1) + 4 for x in (lo, hi)]
    return min(heights) < label.y + 7 and max(heights) > label.y - 7
