// The space-time diagram: one line a rank, time going down, the current step lit.

/** The ranks' circles on top of a diagram, numbered where there is room. */
explore.rankHeads = (sheet, p, x, column) => {
  const every = [1, 2, 4, 8, 16].find((n) => n * column >= 13) || 16;
  for (let rank = 0; rank < p; rank++) {
    const colour = explore.colour(rank, p), style = `fill: ${explore.inkOn(colour)}`;
    const r = every > 1 ? (rank % every ? column / 2 : 8) : Math.min(12, Math.max(7, column / 2 - 1));
    const head = explore.svg("circle", { cx: x(rank), cy: 14, r, fill: explore.css(colour) });
    if (rank % every) sheet.prepend(head);
    else sheet.append(head, explore.svg("text", { x: x(rank), y: 14, class: "rank small", style }, String(rank)));
  }
};

explore.SpaceTime = class {
  constructor(data, schedule, go) { Object.assign(this, { data, schedule, go }); }

  draw(box, t) {
    const { schedule, data } = this, { p, steps } = schedule, S = explore.svg;
    const left = 34, width = Math.max(240, box.clientWidth || 320),
        band = Math.max(26, Math.min(46, Math.floor(560 / Math.max(1, steps))));
    const column = (width - left - 14) / p, x = (rank) => left + rank * column + column / 2;
    this.knob = Math.max(1, Math.min(4.5, column / 2 - 1));
    const top = 34, height = top + steps * band + 10;
    const sheet = S("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "spacetime", role: "group",
      "aria-label": `Space-time diagram of ${steps} steps, step ${t} lit` });
    for (let i = 1; i <= steps; i++) {
      const y = top + (i - 1) * band;
      const row = S("g", { class: `band${i === t ? " lit" : ""}${i > t ? " later" : ""}` });
      row.dataset.step = i;
      row.append(S("rect", { x: 2, y: y + 1, width: width - 4, height: band - 2, rx: 4, class: "ground" }),
        S("text", { x: 10, y: y + band / 2, class: "number" }, String(i)));
      for (const m of explore.messages(data, schedule, i)) row.append(this.arrow(x(m.source), y + 5,
          x(m.destination), y + band - 5, m));
      row.append(S("title", {}, `Go to step ${i}`));
      row.addEventListener("click", () => this.go(i));
      sheet.append(row);
    }
    for (let rank = 0; rank < p; rank++)
      sheet.prepend(S("line", { x1: x(rank), x2: x(rank), y1: 24, y2: height - 4, class: "lifeline" }));
    explore.rankHeads(sheet, p, x, column);
    if (schedule.fault) sheet.append(S("text",
        { x: width - 10, y: top + Math.max(0, schedule.fault.time - 1) * band + band / 2, class: "bang big" }, "!"));
    box.replaceChildren(sheet);
  }

  arrow(x1, y1, x2, y2, message) {
    const half = this.knob / 2;
    const S = explore.svg, length = Math.hypot(x2 - x1, y2 - y1), ux = (x2 - x1) / length, uy = (y2 - y1) / length;
    const tip = message.reduces ? 5 : 1, x = x2 - tip * ux, y = y2 - tip * uy;
    const group = S("g", { class: `message${message.reduces ? " reduces" : ""} strand${message.strand % 4}` },
      S("line", { x1, y1, x2: x - 6 * ux, y2: y - 6 * uy }),
      S("path", { class: "head", d: `M${x} ${y}L${x - 7 * ux + 3 * uy} ${y - 7 * uy - 3 * ux}`
        + `L${x - 7 * ux - 3 * uy} ${y - 7 * uy + 3 * ux}z` }));
    if (message.reduces) group.append(S("circle", { cx: x2, cy: y2, r: this.knob, class: "plus" }),
      S("path", { class: "plus", d: `M${x2 - half} ${y2}h${2 * half}M${x2} ${y2 - half}v${2 * half}` }));
    return group;
  }
};
