// A training step: ranks as columns, moments downward, and beside them the memory of every rank.
explore.Training = class {
  constructor(data, key, name, go, choose) {
    const E = explore.element, step = data.trainings[key], part = (kind) => E("div", { class: kind });
    Object.assign(this, { data, key, step, go, unit: "moment", schedule: { steps: step.moments.length - 1 } });
    this.board = part("trainbox");
    this.held = part("scroll");
    this.table = part("scroll");
    const keys = Object.keys(data.trainings), list = E("select", { "data-field": "training" });
    keys.forEach((other) => list.append(new Option(data.trainings[other].name, other, false, other === key)));
    list.onchange = () => choose(keys[list.selectedIndex], this);
    const last = step.moments[this.schedule.steps];
    this.node = E("section", { class: "side", "aria-label": name },
      E("div", { class: "chooser" }, E("label", { class: "field" }, E("span", {}, "pattern"), list)),
      E("h2", {}, `A step of ${step.name} on ${step.p} ranks: ${step.calls.length} calls and messages, `
          + `${Number(last[3].toPrecision(4))} ms`),
      E("p", { class: "soft idea" }, `${step.about[0].toUpperCase()}${step.about.slice(1)}.`),
      E("div", { class: "pictures" },
        E("div", { class: "card boardcard" }, E("h3", {}, "Ranks, and events downward in program order; ms beside"),
            this.board),
        E("div", { class: "card timecard" }, E("h3", {}, "What each rank holds"), this.held, ...this.legend())),
      E("div", { class: "card calls" }, E("h3", {}, "Calls and messages of the step"), this.table));
    this.rows = step.calls.map((call, i) => this.edges(i));
  }

  /** The moments at which each rank posts and ends a call: Map(rank -> [first, last]). */
  edges(number) {
    const rows = new Map();
    this.step.moments.forEach(([category, , name, , ranks], at) => {
      if (category === "call" && name === number)
        for (const rank of ranks) rows.set(rank, [rows.get(rank)?.[0] ?? at, at]);
    });
    return rows;
  }

  legend() {
    const E = explore.element, { step } = this;
    const whole = step.kinds.map((kind, i) => `${kind} ${explore.bytes(step.whole[i])}`).join(", ");
    return [E("p", { class: "small soft" }, `Whole: as much as one rank alone holds in this step: ${whole}. `
        + `A shard is 1/${step.p} of it. Bytes are of the run's arrays.`)];
  }

  moves(call) { return `moves-${(call.moves || "other").replace(" ", "-")}`; }

  /** The part of the whole in words: none, whole, shard 1/4, 62 %. */
  share(nbytes, kind) {
    const whole = this.step.whole[kind], part = whole ? nbytes / whole : 0;
    if (!nbytes) return "none";
    if (Math.abs(part - 1) < 0.005) return "whole";
    if (kind < 3 && Math.abs(part * this.step.p - 1) < 0.02) return `shard 1/${this.step.p}`;
    return `${Number((100 * part).toPrecision(2))} %`;
  }

  words(call) {
    const what = call.moves ? ` of ${call.moves}` : "";
    return call.algorithm ? `${call.name}${what}, ${call.algorithm}, ${explore.bytes(call.bytes)}`
      : `message${what}, ${explore.bytes(call.bytes)}`;
  }

  /** What happens at a moment, and on which ranks. */
  event(at) {
    const [category, edge, name, , ranks] = this.step.moments[at];
    const on = `${ranks.length > 1 ? "ranks" : "rank"} ${explore.spans(ranks)}`;
    if (category === "step") return `the step ${edge}`;
    if (category === "phase") return `${name} ${edge} on ${on}`;
    const call = this.step.calls[name];
    if (!call.algorithm) return `${this.words(call)}, rank ${call.from} to ${call.ranks.find((r) => r !== call.from)}: `
        + (edge === "posts" ? "sent" : "received");
    return `${this.words(call)}: ${edge === "posts" ? "posted" : "complete"} on ${on}`;
  }

  sentence(t) {
    const at = Math.min(t, this.schedule.steps), held = this.step.held[at];
    const range = (kind) => {
      const bytes = held.map((kinds) => kinds[kind]);
      return [...new Set([Math.min(...bytes), Math.max(...bytes)].map((n) => this.share(n, kind)))].join(" to ");
    };
    const words = this.step.kinds.map((name, kind) => `${name} ${range(kind)}`).join(", ");
    return `Moment ${at} of ${this.schedule.steps}, ${this.step.moments[at][3]} ms: ${this.event(at)}. `
        + `Ranks hold ${words}.`;
  }

  draw(t) {
    const at = Math.min(t, this.schedule.steps);
    this.drawBoard(at);
    this.drawHeld(at);
    this.drawCalls(at);
  }

  drawBoard(at) {
    const S = explore.svg, { step, board } = this, { p, moments } = step;
    const left = 52, row = 24, top = 34, width = Math.max(left + 44 * p, (board.clientWidth || 340) - 4);
    const column = (width - left - 4) / p, x = (rank) => left + (rank + 0.5) * column;
    const y = (moment) => top + moment * row, height = y(moments.length) + 6;
    const sheet = S("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "training", role: "group",
      "aria-label": `A training step of ${moments.length - 1} moments on ${p} ranks, moment ${at} lit; `
        + "the table below has its calls as text." });
    moments.forEach(([, , , ms], i) => {
      const group = S("g", { class: `moment${i === at ? " lit" : ""}` },
        S("rect", { x: 2, y: y(i) + 1, width: width - 4, height: row - 2, rx: 4, class: "ground" }),
        S("text", { x: left - 8, y: y(i) + row / 2, class: "ms" }, String(Number(ms.toPrecision(4)))),
        S("title", {}, `Go to moment ${i}: ${this.event(i)}`));
      group.dataset.moment = i;
      group.addEventListener("click", () => this.go(i));
      sheet.append(group);
    });
    const under = S("g", { style: "pointer-events: none" });
    for (let rank = 0; rank < p; rank++) under.append(S("line", { x1: x(rank), x2: x(rank), y1: 24, y2: height - 4,
        class: "lifeline" }));
    const bar = Math.min(58, column * 0.7);
    for (const [name, rank, first, last] of step.phases) {
      under.append(S("rect", { x: x(rank) - bar / 2, y: y(first) + 4, width: bar, height: (last - first + 1) * row - 8,
          rx: 4, class: `phase ${name}${first > at ? " later" : ""}` }));
      const label = [name, name.slice(0, 3)].find((text) => text.length * 6.2 < bar) || name[0];
      under.append(S("text", { x: x(rank), y: y(first) + row / 2, class: `phasename${first > at ? " later" : ""}` }, label));
    }
    const inFlight = step.calls.map((call, i) => [...this.rows[i]].map(([rank, [first, last]]) => ({ call, rank, first, last })))
      .flat().filter((flight) => flight.last > flight.first);
    const lanes = Array.from({ length: p }, () => []);
    for (const flight of inFlight) { // beside the phase, a lane each while they overlap
      const free = lanes[flight.rank].findIndex((end) => end < flight.first), lane = free < 0 ? lanes[flight.rank].length : free;
      lanes[flight.rank][lane] = flight.last;
      const at0 = x(flight.rank) + bar / 2 + 4 + Math.min(3 * lane, Math.max(0, column / 2 - bar / 2 - 6));
      under.append(S("line", { x1: at0, x2: at0, y1: y(flight.first) + row / 2, y2: y(flight.last) + row / 2,
          class: `flight ${this.moves(flight.call)}${flight.first > at ? " later" : ""}` }));
    }
    sheet.append(under);
    step.calls.forEach((call, i) => this.bands(i, x, y, row, column, at).forEach((band) => sheet.append(band)));
    explore.rankHeads(sheet, p, x, column);
    board.replaceChildren(sheet);
    const room = board.clientHeight;
    if (y(at) < board.scrollTop + top || y(at) + row > board.scrollTop + room) board.scrollTop = y(at) - room / 2;
  }

  /** The bands of a call across its ranks: where it is posted, and where it ends. */
  bands(number, x, y, row, column, at) {
    const S = explore.svg, call = this.step.calls[number];
    return this.step.moments.flatMap(([category, edge, name, , ranks], i) => {
      if (category !== "call" || name !== number) return [];
      const here = call.algorithm ? ranks : call.ranks, low = Math.min(...here), high = Math.max(...here);
      const wide = (high - low + 1) * column - 8, left = x(low) - column / 2 + 4;
      const size = explore.bytes(call.bytes), what = call.algorithm ? `${call.name}, ${call.algorithm}, ${size}`
        : `${call.from} → ${call.ranks.find((r) => r !== call.from)}, ${size}`;
      const isEnd = edge === "ends" && [...this.rows[number].values()].some(([first, last]) => last > first);
      const choices = isEnd || (edge === "ends" && !call.algorithm) ? [`${what}: complete`, `${what} ✓`, `${call.name} ✓`, "✓"]
        : [what, call.algorithm ? call.name : what, call.name.slice(0, 4)];
      const text = choices.find((words) => words.length * 6.4 < wide - 6) || choices[choices.length - 1];
      const band = S(call.link ? "a" : "g", { class: `comm ${edge} ${this.moves(call)}${i > at ? " later" : ""}` },
        S("rect", { x: left, y: y(i) + 2.5, width: wide, height: row - 5, rx: 5, class: "bandbox" }),
        S("text", { x: left + wide / 2, y: y(i) + row / 2, class: "bandname" }, text),
        S("title", {}, `${this.event(i)}${call.link ? "; click for the algorithm" : ""}`));
      if (call.link) band.setAttribute("href", explore.link([call.link], "step=0"));
      else band.addEventListener("click", () => this.go(i));
      band.dataset.call = number;
      return [band];
    });
  }

  drawHeld(at) {
    const E = explore.element, { step } = this, held = step.held[at], before = step.held[Math.max(0, at - 1)];
    const ranks = Array.from({ length: step.p }, (_, rank) => rank);
    const cell = (rank, kind) => {
      const nbytes = held[rank][kind], whole = step.whole[kind] || 1;
      const changed = nbytes !== before[rank][kind] ? " changed" : "";
      const name = step.kinds[kind].replace(" ", "-");
      return E("td", { class: `traincell moves-${name}${changed}`, "data-rank": rank, "data-kind": step.kinds[kind],
          "data-bytes": nbytes },
        E("span", { class: "meter", "aria-hidden": "true" },
            E("i", { style: `width: ${Math.min(100, 100 * nbytes / whole)}%` })),
        E("b", {}, this.share(nbytes, kind)), nbytes ? E("span", { class: "soft" }, explore.bytes(nbytes)) : "");
    };
    this.held.replaceChildren(E("table", { class: "held" },
      E("thead", {}, E("tr", {}, E("th", {}, ""), ...step.kinds.map((kind) => E("th", { scope: "col", class: "kind" }, kind)))),
      E("tbody", {}, ...ranks.map((rank) => E("tr", {}, E("th", { scope: "row" }, `rank ${rank}`),
          ...step.kinds.map((_, kind) => cell(rank, kind)))))));
  }

  drawCalls(at) {
    const E = explore.element, { step } = this;
    const heads = ["call", "algorithm", "bytes", "moves", "ranks", "moments", "ms from entering to leaving"];
    const rows = step.calls.map((call, i) => {
      const places = [...this.rows[i].values()].flat(), first = Math.min(...places), last = Math.max(...places);
      const algorithm = call.link ? E("a", { href: explore.link([call.link], "step=0") }, call.algorithm)
        : call.algorithm || "–";
      const times = call.parts.map(([, began, ended]) => ended - began);
      const took = [Math.min(...times), Math.max(...times)].map((ms) => Number(ms.toPrecision(2)));
      const place = E("button", { type: "button" }, first === last ? `${first}` : `${first}–${last}`);
      place.onclick = () => this.go(first);
      const between = call.algorithm ? explore.spans(call.ranks)
        : `${call.from} → ${call.ranks.find((r) => r !== call.from)}`;
      return E("tr", { class: `callrow${first <= at && at <= last ? " lit" : ""}` },
        E("th", { scope: "row" }, call.algorithm ? call.name : "message"), E("td", {}, algorithm),
        E("td", {}, explore.bytes(call.bytes)), E("td", {}, call.moves || "–"), E("td", {}, between),
        E("td", {}, place), E("td", {}, took[0] === took[1] ? `${took[0]}` : `${took[0]}–${took[1]}`));
    });
    const open = this.table.contains(document.activeElement) ? [...this.table.querySelectorAll("button, a")]
      .indexOf(document.activeElement) : -1;
    this.table.replaceChildren(E("table", {}, E("thead", {}, E("tr", {}, ...heads.map((head) => E("th", { scope: "col" }, head)))),
      E("tbody", {}, ...rows)));
    if (open >= 0) this.table.querySelectorAll("button, a")[open].focus();
  }
};
