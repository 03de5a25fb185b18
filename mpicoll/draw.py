"""Space-time pictures of schedules: one column per rank, time going down, messages as arrows.

text() is plain text, render() the same in colour for a terminal made with rich, svg() a drawing of its own.
All show the same thing: which blocks each message carries, whether they are folded in or take the place of
what was there, and after each step the contributors of every block that a rank has just got.

Where a picture would be too large to read, text turns into a table in bands and the drawing drops its
labels; both say what they leave out.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .errors import MpicollError, spans
from .ir import VALUE, Loc, RecvReduce, Reduce, Send
from .play import Message, Player, Value, contributors
from .schedule import Schedule

Block = Hashable


class Note(NamedTuple):
    """What a rank has just got: the blocks and whose contributions are in them; done when nothing is missing."""

    text: str
    done: bool
    strand: int
    sources: tuple[int, ...]
    folds: bool


class Picture:
    """What is to be drawn: the messages by the step they start in, the notes by step and rank."""

    def __init__(self, schedule: Schedule) -> None:
        player = _Recorder(schedule)
        trace = player.play()
        self.schedule, self.p, self.steps = schedule, schedule.p, trace.steps
        self.messages: dict[int, list[Message]] = defaultdict(list)
        for message in trace.messages:
            self.messages[message.start + 1].append(message)
        self.notes: dict[tuple[int, int], list[Note]] = defaultdict(list)
        ends = [set(schedule.ends(rank)) for rank in range(self.p)]
        for got in player.got:
            self.notes[got.end, got.rank] += self._notes(got, ends[got.rank])

    @property
    def total(self) -> int:
        """How many messages there are."""
        return sum(map(len, self.messages.values()))

    @property
    def strands(self) -> int:
        """How many strands send something."""
        return len({m.strand for at in self.messages.values() for m in at})

    @property
    def headline(self) -> str:
        """What is shown, in one line."""
        counts = f"{_many(self.steps, 'step')}, {_many(self.total, 'message')}"
        return f"{self.schedule.title}, p = {self.p}: {counts}"

    def _notes(self, got: _Got, ends: set[Block]) -> Iterator[Note]:
        """One note for all blocks with the same contributors."""
        collective = self.schedule.collective
        if collective.naming == "none":
            everyone = got.known == (1 << self.p) - 1
            yield Note(f"heard {ranks(contributors(got.known))}", everyone, got.strand, got.sources, False)
            return
        same: dict[tuple[str, Value | None, bool], list[Block]] = defaultdict(list)
        for loc, value in got.values.items():
            same[loc.buffer, value if collective.reduces else None, loc in got.folded].append(loc.block)
        for (buffer, held, folds), blocks in same.items():
            who = contributors(held) if held is not None else []
            label = ("" if buffer == VALUE else f"{buffer} ") + names(blocks) + (f": {ranks(who)}" if who else "")
            done = len(who) == self.p if collective.reduces else ends.issuperset(blocks)
            yield Note(label, done and buffer == VALUE, got.strand, got.sources_of(folds), folds)


@dataclass
class _Got:
    """The end of one rank's step: the values of all it wrote."""

    rank: int
    strand: int
    end: int
    values: dict[Loc, Value]
    folded: set[Loc]
    known: int
    folds_from: tuple[int, ...]
    plain_from: tuple[int, ...]

    @property
    def sources(self) -> tuple[int, ...]:
        return self.folds_from + self.plain_from

    def sources_of(self, folds: bool) -> tuple[int, ...]:
        """The ranks whose messages were folded in, or were not."""
        return self.folds_from if folds else self.plain_from


class _Recorder(Player):
    """A player that keeps what each rank holds when its steps end."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.got: list[_Got] = []

    def _finish(self, line: Any) -> None:
        super()._finish(line)
        step, state = line.steps[line.index], self.trace.state[line.rank]
        if all(isinstance(op, Send) for op in step):
            return
        folded = {Loc(op.buffer, b) for op in step if isinstance(op, RecvReduce) for b in op.blocks}
        local = [op.dst for op in step if isinstance(op, Reduce)]
        plain = [op for op in step if not isinstance(op, Send | RecvReduce | Reduce)]
        written = [Loc(op.buffer, b) for op in step if not isinstance(op, Send | Reduce) for b in op.blocks]
        self.got.append(
            _Got(
                line.rank, line.strand, line.finish, {loc: state[loc] for loc in written + local}, folded,
                self.trace.known[line.rank],
                tuple(op.peer for op in step if isinstance(op, RecvReduce)), tuple(op.peer for op in plain),
            )
        )  # fmt: skip


# -- labels -------------------------------------------------------------------------------------------------


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def ranks(who: Iterable[int]) -> str:
    """Ranks in short form, without spaces.

    >>> ranks([0, 1, 2, 4])
    '0-2,4'
    """
    return spans(who).replace(" ", "")


def names(blocks: Sequence[Any], most: int = 3) -> str:
    """Blocks in short form: b0-2,4 or, for pairs, 0→1 0→2 +4; nothing for a token.

    >>> names([4, 0, 1]), names([(0, 1)]), names([(0, i) for i in range(5)])
    ('b0-1,4', '0→1', '0→0 0→1 0→2 +2')
    """
    if not blocks:
        return ""
    if isinstance(blocks[0], int):
        return f"b{ranks(blocks)}"
    shown = " ".join(f"{s}→{d}" if s != d else f"{s}→{s}" for s, d in blocks[:most])
    return shown + (f" +{len(blocks) - most}" if len(blocks) > most else "")


def clip(text: str, width: int) -> str:
    """A text in at most that many characters.

    >>> clip("b0-3: 0-4", 6)
    'b0-3:…'
    """
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


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
        """A new line; returns its number."""
        self.lines.append([(" ", "")] * self.width)
        self.put(len(self.lines) - 1, 0, text, style)
        return len(self.lines) - 1

    def put(self, y: int, x: int, text: str, style: str = "") -> None:
        """Write over what is there."""
        for i, char in enumerate(text[: self.width - x]):
            self.lines[y][x + i] = (char, style)

    def rows(self) -> Iterator[list[tuple[str, str]]]:
        """The lines without the space at their ends."""
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
        """Where a rank's line is."""
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
            self.canvas.line(f"      … {_many(hidden, 'more message')} in this step left out", "dim")
        self._notes(t)

    def _arrow(self, y: int, message: Message) -> None:
        a, b = self.x(message.source), self.x(message.destination)
        style = STRAND_STYLES[message.strand % len(STRAND_STYLES)]
        room = abs(b - a) - 1
        label = clip(names(message.blocks), room - 3)
        dash = "─" if message.folds else "╌"
        body = f"{f' {label} ' if label else '':{dash}^{room - 1}}"
        self.canvas.put(y, min(a, b) + 1, body + "▶" if b > a else "◀" + body, style)
        self._end(y, a, "├" if b > a else "┤", style)
        self.canvas.put(y, b, "⊕" if message.folds else "●", style)

    def _end(self, y: int, x: int, char: str, style: str) -> None:
        """An arrow's tail; another one there joins it, and a head stays."""
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
    """Messages in as few lines as it takes for none to cross another; short ones first."""
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
    """Whether they share more than a rank's line, or would mark one rank's line in two ways."""
    if a.destination == b.destination and a.folds != b.folds:
        return True
    low, high = max(min(a.source, a.destination), min(b.source, b.destination)), 0
    high = min(max(a.source, a.destination), max(b.source, b.destination))
    return low < high


# -- a table, where the picture is too wide ---------------------------------------------------------------------

TABLE_STEPS, TABLE_BANDS, TABLE_LINES = 32, 4, 4


class _Table:
    """What arrives at each rank in each step, in bands of ranks; the middle is left out where it is long."""

    def __init__(self, picture: Picture, width: int) -> None:
        self.picture = picture
        cells = [len(_cell(note)) for some in picture.notes.values() for note in some]
        self.column = min(28, max([8, *(n + 2 for n in cells)]))
        self.per_band = max(1, (width - LEFT) // self.column)
        self.width = max(width, LEFT + self.column)

    def paint(self) -> _Canvas:
        """All bands that are shown."""
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
                self.canvas.line(f"   … steps {t}-{steps - half} left out ({_many(hidden, 'message')})", "dim")
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
    """One note with the sources of its messages: 4⊕b3: 3-4."""
    return f"{ranks(note.sources)}{'⊕' if note.folds else '▸'}{note.text}"


# -- text and render --------------------------------------------------------------------------------------------


KEY = "the blocks that a rank has just got, and the ranks whose contributions are in them"


def _key(picture: Picture, table: bool) -> str:
    """How to read the picture."""
    collective = picture.schedule.collective
    if collective.naming == "none":
        return "Below the arrows: the ranks that each rank has heard of."
    below = "In each cell: source and" if table else "Below the arrows:"
    where = "⊕ folded in, ▸ received" if table else "─⊕ folded in, ╌● received"
    if not collective.reduces:
        owner = {"rank": "block b is rank b's", "pair": "s→d is rank s's block for rank d"}.get(collective.naming)
        return f"{below} the blocks that a rank has just got" + (f"; {owner}." if owner else ".")
    return f"{where}. {below} {KEY}."


def _paint(schedule: Schedule, width: int | None) -> tuple[str, str, _Canvas]:
    picture = Picture(schedule)
    room = width or WIDEST
    drawing: _SpaceTime | _Table = _SpaceTime(picture)
    if drawing.width > room:
        drawing = _Table(picture, room if width else 120)
    key = textwrap.fill(_key(picture, isinstance(drawing, _Table)), min(room, 120))
    return picture.headline, key, drawing.paint()


def text(schedule: Schedule, width: int | None = None) -> str:
    """The picture as plain text; in a width that does not hold it, a table."""
    headline, key, canvas = _paint(schedule, width)
    return f"{headline}\n{schedule.algorithm.claims.idea}\n{key}\n\n{canvas.plain()}"


def render(schedule: Schedule, width: int | None = None) -> Any:
    """The picture in colour, for rich's Console.print: strands differ in colour, what is complete is green."""
    from rich.text import Text

    headline, key, canvas = _paint(schedule, width)
    out = Text(no_wrap=True, overflow="ignore", end="")
    out.append(f"{headline}\n", "bold").append(f"{schedule.algorithm.claims.idea}\n").append(f"{key}\n\n", "dim")
    for row in canvas.rows():
        for char, style in row:
            out.append(char, style)
        out.append("\n")
    return out


# -- svg ----------------------------------------------------------------------------------------------------------

STRAND_COLOURS = ("#0b64b0", "#c2500a", "#7a3f9d", "#00806a", "#a4234f", "#5b6200")
INK, FAINT, GREEN, PAPER = "#1c2733", "#5d6975", "#17803d", "#ffffff"
FONT, SIZE = "Helvetica, Arial, 'DejaVu Sans', sans-serif", 11.5
ADVANCE = 0.6  # width of a character, in font sizes
LINE = 17  # from one note to the next below it
NOTES_SHOWN, NOTE_WIDTH, MESSAGES_LABELLED = 5, 24, 700
TRIES = (0.3, 0.2, 0.4, 0.25, 0.15, 0.5, 0.6, 0.7, 0.8)  # how far along its arrow a label may stand


def svg(schedule: Schedule) -> str:
    """The picture as a self-contained SVG document; point at an arrow to read all it carries.

    Raises MpicollError, saying what to install, when drawsvg is missing.
    """
    try:
        import drawsvg
    except ImportError:
        raise MpicollError("drawing SVG needs drawsvg: pip install mpicoll[svg]") from None
    return _Drawing(drawsvg, Picture(schedule)).paint()


class _Label(NamedTuple):
    """A message's blocks, and where they stand: the middle of the words."""

    text: str
    x: float
    y: float
    colour: str

    def hits(self, other: _Label) -> bool:
        """Whether the two are in each other's way."""
        apart = (len(self.text) + len(other.text)) / 2 * ADVANCE * SIZE + 3
        return abs(self.x - other.x) < apart and abs(self.y - other.y) < SIZE + 1.5


class _Drawing:
    """Lays a picture out on paper: each step a band, each rank a vertical line."""

    left, margin = 84.0, 24.0
    unlabelled = 0  # labels that found no room

    def __init__(self, drawsvg: Any, picture: Picture) -> None:
        self.dw, self.picture = drawsvg, picture
        self.labelled = picture.total <= MESSAGES_LABELLED
        self.top = 134.0 if picture.schedule.collective.reduces or picture.strands > 1 else 112.0
        self.column = self._column()
        self.bands = self._bands()
        self.labels = [x for at in picture.messages.values() for x in self._labels(at)] if self.labelled else []
        named = sum(bool(m.blocks) for at in picture.messages.values() for m in at)
        self.unlabelled = named - len(self.labels)
        self.width = max(self.left + self.column * picture.p + self.margin, self._heading())
        self.height = self.bands[-1] + 20

    # -- layout

    def _heading(self) -> float:
        """The width of the words on top."""
        idea = self.picture.schedule.algorithm.claims.idea
        sizes = ((19, self.picture.headline), (13, idea), (12, self._key()))
        return 30 + max(ADVANCE * size * len(words) for size, words in sizes)

    def _column(self) -> float:
        """How far apart the ranks stand: room for their notes, and for few ranks the width of the heading."""
        notes = [len(clip(note.text, NOTE_WIDTH)) for some in self.picture.notes.values() for note in some]
        room = 30 + ADVANCE * SIZE * max([6, *notes]) if self.labelled else 34
        return max(room, min((self._heading() - self.left - self.margin) / self.picture.p, 190))

    def _bands(self) -> list[float]:
        """Where each step begins, and where the last one ends: more room where more arrows cross."""
        edges = [self.top]
        for t in range(1, self.picture.steps + 1):
            messages = self.picture.messages[t]
            reach = max((abs(m.source - m.destination) for m in messages), default=0)
            crowd = len(messages) / self.picture.p
            edges.append(edges[-1] + 62 + min(3.0 * reach + 10.0 * max(0, crowd - 1), 120) + LINE * self._lines(t))
        return edges

    def _lines(self, t: int) -> int:
        """How many lines the notes of a step take."""
        most = max((len(self.picture.notes.get((t, rank), ())) for rank in range(self.picture.p)), default=0)
        return min(most, NOTES_SHOWN + 1) if self.labelled else 0

    def x(self, rank: int) -> float:
        """Where a rank's line is."""
        return self.left + self.column * (rank + 0.5)

    def arrival(self, t: int) -> float:
        """The height at which a step's messages arrive, above its notes."""
        return self.bands[t] - 14 - LINE * self._lines(t)

    def ends(self, message: Message) -> tuple[float, float, float, float]:
        """From (sender, start) to (receiver, end)."""
        t = message.start + 1
        return self.x(message.source), self.bands[t - 1] + 9, self.x(message.destination), self.arrival(t)

    def _labels(self, messages: Sequence[Message]) -> Iterator[_Label]:
        """Labels for one step's arrows, each where fewest arrows cross it and no label is; else none."""
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
        points = [(x1 + at * (x2 - x1), y1 + at * (y2 - y1) + 4) for at in TRIES if label]
        return [_Label(label, x, y, _colour(message.strand)) for x, y in points]

    # -- the sheet

    def paint(self) -> str:
        """Draw it from the paper up: bands, lines, arrows, then all that must stay readable."""
        self.sheet = self.dw.Drawing(self.width, self.height, font_family=FONT)
        self.sheet.append(self.dw.Rectangle(0, 0, self.width, self.height, fill=PAPER))
        self._head()
        self._ground()
        messages = [m for at in self.picture.messages.values() for m in at]
        for message in sorted(messages, key=lambda m: -abs(m.source - m.destination)):
            self._message(message)
        for label in self.labels:
            self._halo(label)
        if self.labelled:
            for (t, rank), notes in self.picture.notes.items():
                self._notes(t, rank, notes)
        return str(self.sheet.as_svg())

    def _text(self, words: str, x: float, y: float, size: float = SIZE, **look: Any) -> None:
        self.sheet.append(self.dw.Text(words, size, x, y, **{"fill": INK, **look}))

    def _head(self) -> None:
        self._text(self.picture.headline, 20, 34, 19, font_weight="bold")
        self._text(self.picture.schedule.algorithm.claims.idea, 20, 55, 13, fill=FAINT)
        self._text(self._key(), 20, 76, 12, fill=FAINT)
        self._legend(20, 98)

    def _key(self) -> str:
        if not self.labelled:
            return "Too many messages to label: point at an arrow to read what it carries."
        missing = self.unlabelled
        more = f" {_many(missing, 'label')} had no room: point at an arrow to read it." if missing else ""
        words = _key(self.picture, False)
        return words[words.index("Below") :] + more

    def _legend(self, x: float, y: float) -> None:
        folds = self.picture.schedule.collective.reduces
        for fold, words in ((True, "folded in"), (False, "received")) if folds else ():
            self._arrow((x, y, x + 36, y), _colour(0), fold, self.sheet)
            self._text(words, x + 48, y + 4, 12)
            x += 124
        if folds and self.labelled:
            self._pill("complete", x + 30, y, True, _colour(0))
            x += 92
        for strand in range(self.picture.strands if self.picture.strands > 1 else 0):
            self.sheet.append(self.dw.Rectangle(x, y - 3, 22, 6, rx=3, fill=_colour(strand)))
            self._text(f"strand {strand}", x + 28, y + 4, 12)
            x += 94

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
        self._arrow(self.ends(message), _colour(message.strand), message.folds, group)
        self.sheet.append(group)

    def _tooltip(self, message: Message) -> str:
        what = names(message.blocks, len(message.blocks)) or "no blocks"
        held = {ranks(contributors(v)) for v in message.values} if self.picture.schedule.collective.reduces else ()
        whose = f", contributors {' / '.join(sorted(held))}" if held else ""
        how = ", folded in" if message.folds else ""
        return f"step {message.start + 1}: {message.source} to {message.destination}: {what}{whose}{how}"

    def _arrow(self, line: tuple[float, float, float, float], colour: str, folds: bool, into: Any) -> None:
        """A solid arrow into a plus for what is folded in, a dashed one for what is received."""
        x1, y1, x2, y2 = line
        length = max(1.0, ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5)
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        look: dict[str, Any] = {"stroke_width": 2.0} if folds else {"stroke_width": 1.6, "stroke_dasharray": "6 4"}
        into.append(self.dw.Line(x1, y1, x2 - 13 * ux, y2 - 13 * uy, stroke=colour, **look))
        tip = 6.5 if folds else 1.0
        x, y = x2 - tip * ux, y2 - tip * uy
        wings = [x - 10 * ux + 4.2 * uy, y - 10 * uy - 4.2 * ux, x - 10 * ux - 4.2 * uy, y - 10 * uy + 4.2 * ux]
        into.append(self.dw.Lines(x, y, *wings, close=True, fill=colour))
        if folds:
            into.append(self.dw.Circle(x2, y2, 6, fill=PAPER, stroke=colour, stroke_width=1.6))
            into.append(self.dw.Path(d=f"M{x2 - 4:g} {y2:g}h8M{x2:g} {y2 - 4:g}v8", stroke=colour, stroke_width=1.6))

    # -- labels

    def _halo(self, label: _Label) -> None:
        look: dict[str, Any] = {"text_anchor": "middle", "font_weight": "bold"}
        outline: dict[str, Any] = {"fill": PAPER, "stroke": PAPER, "stroke_width": 4, "stroke_linejoin": "round"}
        self._text(label.text, label.x, label.y, **look, **outline)
        self._text(label.text, label.x, label.y, **{**look, "fill": label.colour})

    def _notes(self, t: int, rank: int, notes: Sequence[Note]) -> None:
        y = self.arrival(t) + 20
        for note in notes[:NOTES_SHOWN]:
            self._pill(clip(note.text, NOTE_WIDTH), self.x(rank), y, note.done, _colour(note.strand))
            y += LINE
        if len(notes) > NOTES_SHOWN:
            more = f"+{len(notes) - NOTES_SHOWN} more"
            self._text(more, self.x(rank), y + 4, fill=FAINT, text_anchor="middle")

    def _pill(self, words: str, x: float, y: float, done: bool, colour: str) -> None:
        width = ADVANCE * SIZE * len(words) + 10
        look = {"fill": "#dff3e5", "stroke": GREEN} if done else {"fill": PAPER, "stroke": colour}
        self.sheet.append(self.dw.Rectangle(x - width / 2, y - 7.5, width, 15, rx=7.5, stroke_width=1, **look))
        self._text(words, x, y + 4, fill="#0d5427" if done else INK, text_anchor="middle")


def _colour(strand: int) -> str:
    return STRAND_COLOURS[strand % len(STRAND_COLOURS)]


def _crosses(line: tuple[float, float, float, float], label: _Label) -> bool:
    """Whether an arrow runs through a label's words."""
    x1, y1, x2, y2 = line
    half = len(label.text) * ADVANCE * SIZE / 2
    lo, hi = max(min(x1, x2), label.x - half), min(max(x1, x2), label.x + half)
    if lo > hi or x1 == x2:
        return False
    heights = [y1 + (x - x1) / (x2 - x1) * (y2 - y1) + 4 for x in (lo, hi)]
    return min(heights) < label.y + 7 and max(heights) > label.y - 7
