// The board: ranks as columns with their blocks, and above them the messages of the step.
explore.Board = class {
  constructor(data, schedule) {
    Object.assign(this, { data, schedule, p: schedule.p, meaning: data.collectives[schedule.collective] });
    this.rows = this.makeRows();
    this.places = new Map(this.rows.map((row, i) => [row.id, i]));
    this.lanes = Math.max(1, ...Array.from({ length: schedule.steps }, (_, i) => this.pack(this.at(i + 1)).length));
    if (schedule.time) // messages of several steps may be in flight
      for (const [leave] of schedule.time.messages) this.lanes = Math.max(this.lanes,
          this.pack(explore.underWay(data, schedule, leave)).length);
  }

  at(t) { return explore.messages(this.data, this.schedule, t); }

  /** Messages in lines so that none crosses another in its line, short ones first. */
  pack(messages) {
    const lines = [];
    const reach = (m) => [Math.min(m.source, m.destination), Math.max(m.source, m.destination)];
    const order = [...messages].sort((a, b) => Math.abs(a.source - a.destination) - Math.abs(b.source - b.destination)
      || a.strand - b.strand || Math.min(...reach(a)) - Math.min(...reach(b)));
    for (const message of order) {
      const [low, high] = reach(message);
      const isFree = (line) => line.every((other) => reach(other)[1] <= low || reach(other)[0] >= high);
      const line = lines.find(isFree);
      if (line) line.push(message);
      else lines.push([message]);
    }
    return lines;
  }

  makeRows() {
    const { schedule, meaning, p } = this, rows = [];
    const used = new Map(schedule.buffers.map((buffer) => [buffer, new Set()]));
    for (const [, , buffer, block] of schedule.writes) used.get(schedule.buffers[buffer]).add(block);
    if (meaning.naming === "none") return [{ id: "heard of|0", name: "heard", group: "ranks heard of" }];
    if (meaning.naming === "pair") {
      for (let i = 0; i < p; i++) rows.push({ id: `to|${i}`, name: `to ${i}`, group: "own blocks, by destination" });
      for (let i = 0; i < p; i++) rows.push({ id: `from|${i}`, name: `from ${i}`, group: "received, by source" });
      this.passing = Math.min(2 * p, this.mostPassing());
      for (let i = 0; i < this.passing;
          i++) rows.push({ id: `passing|${i}`, name: "", group: "scratch: passing through" });
    } else for (let i = 0; i < schedule.blocks; i++)
      rows.push({ id: `value|${i}`, name: explore.blockName(meaning, schedule, i),
          group: meaning.naming === "edge" ? "edges" : "vector" });
    for (const [buffer, blocks] of used)
      if (buffer !== "value" && meaning.naming !== "pair")
        for (const block of [...blocks].sort((a, b) => a - b))
          rows.push({ id: `${buffer}|${block}`, name: explore.blockName(meaning, schedule, block),
              group: `scratch: ${buffer}` });
    return rows;
  }

  mostPassing() {
    const held = new Map();
    for (const [, rank, buffer, block] of this.schedule.writes) {
      const [s, d] = [Math.floor(block / this.p), block % this.p];
      const name = this.schedule.buffers[buffer];
      if (name !== "value" || (s !== rank && d !== rank)) held.set(rank, (held.get(rank) || new Set())
          .add(`${name}|${block}`));
    }
    return Math.max(0, ...[...held.values()].map((set) => set.size));
  }

  /** The cells of a frame: {rank, row, block, buffer, value, …}. */
  cells(t, us = null) {
    const cells = [], passing = new Map(), { p } = this;
    for (const [key, place] of explore.frame(this.data, this.schedule, t, us)) {
      const [rank, buffer, block] = [Number(key.split("|")[0]), key.split("|")[1], Number(key.split("|")[2])];
      const add = (id) => this.places.has(id) && cells.push({ rank, buffer, block, row: this.places.get(id),
          ...place });
      if (this.meaning.naming !== "pair") { add(`${buffer}|${block}`); continue; }
      const [s, d] = [Math.floor(block / p), block % p];
      if (buffer === "value" && s === rank) add(`to|${d}`);
      if (buffer === "value" && d === rank) add(`from|${s}`);
      if (buffer !== "value" || (s !== rank && d !== rank)) {
        const n = passing.get(rank) || 0;
        passing.set(rank, n + 1);
        add(`passing|${n}`);
      }
    }
    return cells;
  }

  name(cell) { return explore.blockName(this.meaning, this.schedule, cell.block); }

  // -- drawing ----------------------------------------------------------------------------------------------------

  /** Draw what is there after step t, or at a time in µs; what was written since `before` is marked as new. */
  draw(box, t, us = null, before = t - 1) {
    const { p, rows } = this, S = explore.svg;
    const left = this.meaning.naming === "pair" ? 60 : 44, room = Math.max(260, box.clientWidth - left - 8);
    const column = Math.max(p > 24 ? 30 : 42, Math.min(200, Math.floor(room / p)));
    const height = rows.length > 40 ? 17 : rows.length > 24 ? 20 : rows.length > 12 ? 26 : rows.length > 6 ? 36 : 44;
    const pitch = Math.max(2.5, Math.min(22, 190 / this.lanes));
    const groups = [...new Set(rows.map((row) => row.group))];
    const laneTop = 44, boardTop = laneTop + this.lanes * pitch + 22;
    const y = (row) => boardTop + row * height + 20 * (groups.indexOf(rows[row].group) + 1);
    const x = (rank) => left + rank * column + column / 2;
    const width = left + column * p + 8, total = y(rows.length - 1) + height + 8;
    const sheet = S("svg", { width, height: total, viewBox: `0 0 ${width} ${total}`, role: "img", class: "board" });
    sheet.setAttribute("aria-label",
        `What every rank of ${p} holds ${us === null ? `after step ${t}` : `at ${explore.microseconds(us)}`}; `
        + "the table below has the same as text.");
    Object.assign(this, { sheet, x, y, column, height, pitch, laneTop, left });
    this.columns(laneTop, total);
    groups.forEach((group) => {
      const first = rows.findIndex((row) => row.group === group);
      sheet.append(S("text", { x: 2, y: y(first) - 6, class: "group" }, group));
    });
    rows.forEach((row, i) => sheet.append(S("text", { x: left - 8, y: y(i) + height / 2 + 1, class: "row" },
        row.name)));
    this.empties();
    const messages = us === null ? this.at(t) : explore.underWay(this.data, this.schedule, us), sent = new Set();
    for (const m of messages) for (const b of m.blocks) sent.add(`${m.source}|${m.buffer}|${b}`);
    for (const cell of this.cells(t, us)) this.cell(cell, cell.end > Math.max(0, before),
        sent.has(`${cell.rank}|${cell.buffer}|${cell.block}`));
    this.arrows(messages);
    if (this.schedule.fault && t >= this.schedule.fault.time) this.faults();
    box.replaceChildren(sheet);
  }

  columns(laneTop, total) {
    const S = explore.svg;
    for (let rank = 0; rank < this.p; rank++) {
      const colour = explore.colour(rank, this.p), x = this.x(rank), r = this.column < 40 ? 11 : 14;
      this.sheet.append(S("line", { x1: x, x2: x, y1: 30, y2: total - 6, class: "lifeline" }),
        S("circle", { cx: x, cy: 18, r, fill: explore.css(colour) }),
        S("text", { x, y: 18, class: "rank", style: `fill: ${explore.inkOn(colour)}` }, String(rank)));
    }
  }

  empties() {
    const { meaning, schedule } = this;
    const wanted = (rank, i) => meaning.naming === "pair" ? !this.rows[i].id.startsWith("passing")
      : meaning.naming !== "none" && (schedule.starts[rank].includes(i) || schedule.ends[rank].includes(i))
          && i < schedule.blocks;
    for (let i = 0; i < this.rows.length; i++)
      for (let rank = 0; rank < this.p; rank++)
        if (wanted(rank, i)) this.sheet.append(explore.svg("rect", { ...this.box(rank, i), class: "empty" }));
  }

  box(rank, row) {
    const gap = this.column > 60 ? 6 : 3;
    return { x: this.x(rank) - this.column / 2 + gap, y: this.y(row) + 2, width: this.column - 2 * gap,
        height: this.height - 4, rx: 4 };
  }

  cell(cell, isNew, isSent) {
    const S = explore.svg, box = this.box(cell.rank, cell.row), { p } = this;
    const who = explore.ranks(cell.value);
    const group = S("g", { class: `cell${isNew ? " new" : ""}${cell.done ? " done" : ""}${isSent ? " sent" : ""}` });
    group.dataset.rank = cell.rank;
    group.dataset.place = `${cell.buffer}|${cell.block}`;
    group.dataset.value = cell.value;
    group.append(S("rect", { ...box, class: "frame" }));
    const bar = { x: box.x + 4, y: box.y + 4, width: box.width - 8,
        height: this.height < 30 ? 5 : Math.floor(this.height * 0.3) };
    if (this.height <= 20) Object.assign(bar, { y: box.y + 3, height: box.height - 6 });
    const slot = bar.width / p, pad = slot > 5 ? 0.75 : 0;
    group.append(S("rect", { x: bar.x, y: bar.y, width: bar.width, height: bar.height, class: "slots" }));
    const isMoved = !this.meaning.reduces && this.meaning.naming !== "none";
    if (isMoved) group.append(S("rect", { x: box.x + 2.5, y: box.y + 2.5, width: box.width - 5,
        height: box.height - 5, rx: 2, fill: explore.css(explore.colour(who[0], p)) }));
    else for (const rank of who)
      group.append(S("rect", { x: bar.x + rank * slot + pad, y: bar.y, width: Math.max(1, slot - 2 * pad),
          height: bar.height, fill: explore.css(explore.colour(rank, p)) }));
    this.caption(group, cell, box, who, isMoved);
    if (isNew && cell.reduced) this.plus(group, box.x + box.width - 1, box.y + 2);
    const how = cell.reduced && isNew ? ", just reduced" : isNew ? ", just received or written" : "";
    group.append(S("title", {},
        `rank ${cell.rank}, ${cell.buffer} ${this.name(cell)}: ${isMoved ? "from rank" : "contributions of"} `
        + `${cell.value || "none"}${how}${cell.done ? "; complete" : ""}`));
    this.sheet.append(group);
  }

  caption(group, cell, box, who, isMoved) {
    if (this.height <= 20 && !isMoved) return;
    const fits = (text) => text.length * 6.6 < box.width - 6, tick = cell.done ? " ✓" : "";
    const long = isMoved ? `from ${cell.value}` : cell.value;
    const choices = [long + tick, isMoved ? cell.value + tick : `${who.length}/${this.p}${tick}`,
        isMoved ? cell.value : `${who.length}${tick}`];
    if (this.meaning.naming === "pair") choices.splice(0, 1, this.name(cell) + tick);
    const words = choices.find(fits) || tick.trim(), x = box.x + box.width / 2;
    if (isMoved) group.append(explore.svg("text", { x, y: box.y + box.height / 2 + 0.5, class: "moved",
        style: `fill: ${explore.inkOn(explore.colour(who[0], this.p))}` }, words));
    else {
      const [up, look] = this.height > 30 ? [8, "who"] : [6, "who small"];
      group.append(explore.svg("text", { x, y: box.y + box.height - up, class: look }, words));
    }
  }

  plus(into, x, y) {
    into.append(explore.svg("circle", { cx: x, cy: y, r: 6, class: "plus" }),
        explore.svg("path", { d: `M${x - 3.5} ${y}h7M${x} ${y - 3.5}v7`, class: "plus" }));
  }

  arrows(messages) {
    const S = explore.svg, { pitch } = this;
    this.pack(messages).forEach((line, i) => {
      for (const m of line) {
        const y = this.laneTop + (i + 0.5) * pitch, a = this.x(m.source), b = this.x(m.destination),
            way = Math.sign(b - a);
        const label = explore.blockNames(this.meaning, this.schedule, m.blocks);
        const group = S("g", { class: `message${m.reduces ? " reduces" : ""} strand${m.strand % 4}` });
        const tip = b - way * (m.reduces ? 6 : 3);
        if (pitch < 7) { // too many for heads
          group.append(S("line", { x1: a, x2: b, y1: y, y2: y }), S("circle", { cx: b, cy: y, r: 1.5, class: "tail" }));
          this.sheet.append(group);
          continue;
        }
        group.append(S("circle", { cx: a, cy: y, r: 2.5, class: "tail" }),
          S("line", { x1: a, x2: tip - way * 6, y1: y, y2: y }),
          S("path", { d: `M${tip} ${y}l${-way * 8} -4v8z`, class: "head" }));
        if (m.reduces) this.plus(group, b, y);
        else group.append(S("circle", { cx: b, cy: y, r: 2.5, class: "tail" }));
        if (pitch >= 12 && label && label.length * 6.4 < Math.abs(b - a) - 16) {
          const wide = label.length * 6.4 + 8;
          group.append(S("rect", { x: (a + b) / 2 - wide / 2, y: y - 7, width: wide, height: 14, class: "paper" }),
            S("text", { x: (a + b) / 2, y, class: "label" }, label));
        }
        const whose = this.meaning.reduces ? `, contributions ${[...new Set(m.values)].join(" / ")}` : "";
        group.append(S("title", {},
            `rank ${m.source} to rank ${m.destination}: ${label || "a token"}${whose}`
            + `${m.reduces ? ", reduced" : ""}${m.encoded ? ", encoded" : ""}`));
        this.sheet.append(group);
      }
    });
  }

  faults() {
    const { fault } = this.schedule, S = explore.svg;
    for (const [rank, buffer, block, missing, doubled, surplus] of fault.places) {
      const id = this.meaning.naming !== "pair" ? `${buffer}|${block}`
        : block % this.p === rank ? `from|${Math.floor(block / this.p)}` : `to|${block % this.p}`;
      if (!this.places.has(id)) continue;
      const box = this.box(rank, this.places.get(id));
      const words = [missing.length && `missing ${explore.spans(missing)}`,
          doubled.length && `twice ${explore.spans(doubled)}`,
          surplus.length && `also ${explore.spans(surplus)}`].filter(Boolean).join(", ");
      const group = S("g", { class: "fault" }, S("rect", { ...box, class: "mark" }),
        S("circle", { cx: box.x, cy: box.y, r: 7 }), S("text", { x: box.x, y: box.y, class: "bang" }, "!"),
        S("title", {}, `rank ${rank}, ${buffer} block ${block}: ${words || "not what it has to be"}`));
      if (this.height > 20) group.append(S("rect", { x: box.x + 2, y: box.y + box.height - 15,
          width: box.width - 4, height: 14, class: "paper" }),
        S("text", { x: box.x + box.width / 2, y: box.y + box.height - 8, class: "why" }, words));
      this.sheet.append(group);
    }
    for (const rank of new Set(fault.waits.map((wait) => wait[0]))) {
      this.sheet.append(S("circle", { cx: this.x(rank), cy: 18, r: 17, class: "waits" }));
    }
  }
};
