// In time: the position of the slider as µs, the diagram with time going down, and the cost of calls over their size.
explore.TICKS = 240; // positions of the slider, in time

explore.microseconds = (us) => us >= 1e6 ? `${Number((us / 1e6).toPrecision(3))} s`
  : us >= 1000 ? `${Number((us / 1000).toPrecision(3))} ms` : `${Number(us.toPrecision(3))} µs`;

explore.bytes = (n) => {
  const [unit, name] = [[2 ** 20, "MiB"], [1024, "KiB"]].find(([least]) => n >= least) || [1, "B"];
  return `${Number((n / unit).toPrecision(4))} ${name}`;
};

/** The messages in flight at a time, as explore.messages has those of a step. */
explore.underWay = (data, schedule, us) => {
  const { messages } = schedule.time;
  const wanted = schedule.messages.filter((_, i) => messages[i][0] <= us && us < messages[i][1]);
  return explore.unpacked(data, wanted);
};

explore.Gantt = class {
  constructor(data, schedule) { Object.assign(this, { data, schedule }); }

  /** Draw it up to `most` µs, so that two side by side have one scale. */
  draw(box, us, most) {
    const { schedule } = this, { p, time } = schedule, S = explore.svg;
    const left = 60, width = Math.max(240, box.clientWidth || 320), top = 34, tall = 430, height = top + tall + 16;
    const column = (width - left - 14) / p, x = (rank) => left + rank * column + column / 2;
    const y = (at) => top + (at / (most || 1)) * tall;
    const sheet = S("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "spacetime", role: "img",
      "aria-label": `What each rank sends, receives and reduces in ${explore.microseconds(time.us)}` });
    for (let i = 0; i <= 4; i++) {
      const at = (most * i) / 4;
      sheet.append(S("line", { x1: left, x2: width - 6, y1: y(at), y2: y(at), class: "lifeline" }),
        S("text", { x: left - 6, y: y(at), class: "row" }, explore.microseconds(at)));
    }
    for (let rank = 0; rank < p; rank++)
      sheet.append(S("line", { x1: x(rank), x2: x(rank), y1: 24, y2: y(time.us), class: "lifeline" }));
    (time.calls || []).forEach(([begin, end], rank) => sheet.append(S("rect", { x: x(rank) - 2, y: y(begin), width: 4,
      height: y(end) - y(begin), class: "inside" }, S("title", {},
      `rank ${rank} is in the call from ${explore.microseconds(begin)} to ${explore.microseconds(end)}`))));
    for (const [rank, begin, end] of time.computes)
      sheet.append(S("rect", { x: x(rank) - 4, y: y(begin), width: 8, height: Math.max(1, y(end) - y(begin)),
        class: "computes" }, S("title", {}, `rank ${rank} reduces or copies for ${explore.microseconds(end - begin)}`)));
    schedule.messages.forEach(([, source, destination, strand, flags], i) => {
      const [leave, arrive] = time.messages[i], isNow = leave <= us && us < arrive;
      const [x1, y1, x2, y2] = [x(source), y(leave), x(destination), y(arrive)];
      const length = Math.hypot(x2 - x1, y2 - y1) || 1, ux = (x2 - x1) / length, uy = (y2 - y1) / length;
      sheet.append(S("g", { class: `message strand${strand % 4}${flags & 1 ? " reduces" : ""}${isNow ? "" : " faint"}` },
        S("line", { x1, y1, x2, y2 }),
        S("path", { class: "head", d: `M${x2} ${y2}L${x2 - 7 * ux + 3 * uy} ${y2 - 7 * uy - 3 * ux}`
          + `L${x2 - 7 * ux - 3 * uy} ${y2 - 7 * uy + 3 * ux}z` }),
        S("title", {}, `${source} to ${destination}: `
          + `${explore.microseconds(leave)} to ${explore.microseconds(arrive)}`)));
    });
    sheet.append(S("line", { x1: left, x2: width - 6, y1: y(us), y2: y(us), class: "now" }));
    explore.rankHeads(sheet, p, x, column);
    box.replaceChildren(sheet);
  }
};

/** The cost of calls over their size: what is chosen in strong lines, the other algorithms of the collective faint. */
explore.costs = (data, keys, choose) => {
  const S = explore.svg, E = explore.element, first = data.schedules[keys[0]], { sizes } = data.clock;
  const same = Object.entries(data.schedules).filter(([key, entry]) => entry.curve
    && entry.collective === first.collective && entry.p === first.p
        && (keys.includes(key) || !entry.spec.includes("(")));
  if (!same.length) return [E("p", { class: "soft" }, "Times are for root 0 and operators that commute.")];
  const every = same.flatMap(([, entry]) => entry.curve).filter((us) => us > 0);
  if (!every.length) return [E("p", { class: "soft" }, "A single rank takes no time.")];
  const low = Math.log10(Math.min(...every)), high = Math.log10(Math.max(...every));
  const width = 760, height = 340, left = 62, right = 150, top = 12, bottom = 34;
  const x = (i) => left + (i / (sizes.length - 1)) * (width - left - right);
  const y = (us) => top + (1 - (Math.max(low, Math.log10(us)) - low) / (high - low || 1)) * (height - top - bottom);
  const sheet = S("svg", { viewBox: `0 0 ${width} ${height}`, class: "costs", role: "img",
    "aria-label": `Microseconds of ${first.collective} on ${first.p} ranks by bytes of the call` });
  for (let power = Math.ceil(low); power <= Math.floor(high); power++)
    sheet.append(S("line", { x1: left, x2: width - right, y1: y(10 ** power), y2: y(10 ** power), class: "lifeline" }),
      S("text", { x: left - 6, y: y(10 ** power), class: "row" }, explore.microseconds(10 ** power)));
  sizes.forEach((size, i) => i % 2 === 0 && sheet.append(S("text", { x: x(i), y: height - 16, class: "tick" },
      explore.bytes(size))));
  const labels = [], at = (us, i) => `${explore.bytes(sizes[i])} ${explore.microseconds(us)}`;
  same.sort(([a], [b]) => keys.includes(a) - keys.includes(b)).forEach(([key, entry]) => {
    const which = keys.indexOf(key), line = entry.curve.map((us, i) => `${x(i).toFixed(1)} ${y(us).toFixed(1)}`)
        .join("L");
    const group = S("g", { class: `curve${which < 0 ? " other" : ` side${which}`}` },
        S("path", { d: `M${line}`, class: "wide-target" }),
      S("path", { d: `M${line}` }),
          S("title", {}, `${entry.spec}: ${entry.curve.map(at).join(", ")}`));
    if (which < 0) group.addEventListener("click", () => choose(key));
    if (which >= 0 || same.length <= 6) labels.push([y(entry.curve[entry.curve.length - 1]), entry.spec, which]);
    sheet.append(group);
  });
  labels.sort((a, b) => a[0] - b[0])
      .forEach((label, i) => { if (i && label[0] < labels[i - 1][0] + 15) label[0] = labels[i - 1][0] + 15; });
  for (const [at, spec, which] of labels)
    sheet.append(S("text", { x: width - right + 8, y: at, class: which < 0 ? "end other" : `end side${which}` },
        spec.length > 20 ? `${spec.slice(0, 19)}…` : spec));
  return [E("p", { class: "soft small" }, `${first.collective} on ${first.p} ranks, ${data.clock.network}, `
    + `${data.clock.nodes[first.p]}. `
    + "Faint lines are the other algorithms: point at one to read it, click to choose it."), sheet];
};
