// What stands beside the pictures: numbers against formulas, load of each rank, the table, the code, the fault.
explore.panels = {
  /** One sentence on a step, for the line under the player and for screen readers. */
  sentence(data, schedule, t, us = null) {
    const meaning = data.collectives[schedule.collective], now = Math.min(t, schedule.steps);
    if (us !== null) {
      const moving = explore.underWay(data, schedule, us), words = moving.slice(0, 6)
          .map((m) => `${m.source} to ${m.destination}`);
      const reducing = schedule.time.computes.filter(([, begin, end]) => begin <= us && us < end).map(([rank]) => rank);
      const state = us >= schedule.time.us ? "ended"
          : `${moving.length} message${moving.length === 1 ? "" : "s"} in flight`
        + (words.length ? `: ${words.join(", ")}${moving.length > 6 ? ` and ${moving.length - 6} more` : ""}` : "")
        + (reducing.length ? `; reducing or copying: rank ${explore.spans(new Set(reducing))}` : "");
      const end = schedule.time.us;
      return `${explore.microseconds(Math.min(us, end))} of ${explore.microseconds(end)}: ${state}.`;
    }
    const follow = schedule.steps === 1 ? "step follows" : "steps follow";
    if (!now) return `Start: what each rank begins with. ${schedule.steps} ${follow}.`;
    const messages = explore.messages(data, schedule, now);
    if (!messages.length) return `Step ${now} of ${schedule.steps}: no message.`;
    const reduced = messages.filter((m) => m.reduces).length;
    const how = !meaning.reduces ? "" : reduced === messages.length ? `,${reduced > 1 ? " all" : ""} reduced` : reduced
        ? `, ${reduced} reduced` : ", in the place of what was there";
    const some = messages.sort((a, b) => a.source - b.source || a.destination - b.destination).slice(0, 6)
        .map((m) => `${m.source} to ${m.destination} ${explore.blockNames(meaning, schedule, m.blocks)}`.trim());
    const rest = messages.length > 6 ? ` and ${messages.length - 6} more` : "";
    const end = t > schedule.steps ? " (ended)" : "";
    const count = `${messages.length} message${messages.length === 1 ? "" : "s"}`;
    return `Step ${now} of ${schedule.steps}${end}: ${count}${how}: ${some.join(", ")}${rest}.`;
  },

  numbers(data, schedule, t, us = null) {
    const E = explore.element, facts = data.algorithms[`${schedule.collective}/${explore.nameOf(schedule.spec)}`];
    const now = explore.soFar(schedule, t, us), all = explore.soFar(schedule, schedule.steps), { claimed } = schedule;
    const isBarrier = data.collectives[schedule.collective].naming === "none";
    const rows = [
      ["steps", now.steps, schedule.steps, facts.steps, claimed.steps],
      isBarrier ? null : ["bytes per rank, at most", explore.share(now.bytes), explore.share(all.bytes),
          facts.bytes_per_rank, claimed.bytes_per_rank],
      ["messages", now.messages, all.messages, "", ""],
      isBarrier ? null : ["scratch", "", "", facts.scratch, claimed.scratch],
    ].filter(Boolean);
    const head = E("tr", {}, ...["", "so far", "in all", "formula", `at p = ${schedule.p}`].map((word) => E("th",
        { scope: "col" }, word)));
    const body = rows.map(([name, ...cells]) => E("tr", { "data-name": name.split(",")[0] },
        E("th", { scope: "row" }, name),
      ...cells.map((cell, i) => E("td", { class: i === 2 ? "formula" : null }, String(cell)))));
    const parts = [E("div", { class: "scroll" }, E("table", { class: "numbers" }, E("thead", {}, head),
        E("tbody", {}, ...body)))];
    const note = schedule.root ? " The formulas are proved at root 0; here another rank is the root." : "";
    parts.push(E("p", { class: "soft small" }, `Time: ${facts.cost}. n is the bytes of the vector.${note}`));
    parts.push(E("p", { class: "soft small" }, `Source: ${facts.source}.`));
    return parts;
  },

  /** Bytes that each rank has sent and received, as bars. */
  load(schedule, t, us = null) {
    const E = explore.element, S = explore.svg, { p } = schedule;
    const total = [new Array(p).fill(0), new Array(p).fill(0)], now = [new Array(p).fill(0), new Array(p).fill(0)];
    schedule.messages.forEach(([, source, destination, , flags, , blocks], i) => {
      const bytes = (blocks.length || 0) * (flags & 2 ? schedule.code_share : 1) * explore.fraction(schedule.of_n);
      for (const [sums, isCounted] of [[total, true], [now, explore.hasArrived(schedule, i, t, us)]])
        if (isCounted) { sums[0][source] += bytes; sums[1][destination] += bytes; }
    });
    const most = Math.max(...total[0], ...total[1]);
    if (!most) return [];
    const words = (sent, rank) => `rank ${rank} sent ${explore.share(sent)}, received ${explore.share(now[1][rank])}`;
    const width = 320, height = 84, column = (width - 4) / p, bar = Math.max(2, Math.min(12, column / 2 - 2));
    const sheet = S("svg", { viewBox: `0 0 ${width} ${height}`, class: "load", role: "img",
      "aria-label": `Bytes by rank so far: ${now[0].map(words).join("; ")}` });
    for (let rank = 0; rank < p; rank++) {
      const x = 2 + (rank + 0.5) * column;
      [[0, -bar - 0.5, "sent"], [1, 0.5, "received"]].forEach(([which, dx, name]) => {
        const full = 62 * total[which][rank] / most, tall = 62 * now[which][rank] / most;
        sheet.append(S("rect", { x: x + dx, y: 66 - full, width: bar, height: full, class: "later" }),
          S("rect", { x: x + dx, y: 66 - tall, width: bar, height: tall, class: name },
              S("title", {}, `rank ${rank} ${name} ${explore.share(now[which][rank])}`
                + ` of ${explore.share(total[which][rank])}`)));
      });
      sheet.append(S("text", { x, y: 76, class: "tick" }, String(rank)));
    }
    return [E("p", { class: "small key" }, E("span", { class: "swatch sent" }), "sent ",
        E("span", { class: "swatch received" }), `received, by rank; the busiest ${explore.share(most)} in all`),
        sheet];
  },

  table(board, schedule, t, us = null) {
    const E = explore.element, cells = board.cells(t, us),
        by = new Map(cells.map((cell) => [`${cell.rank}|${cell.row}`, cell]));
    const ranks = Array.from({ length: schedule.p }, (_, rank) => rank);
    const words = (cell) => cell ? (board.meaning.naming === "pair" ? board.name(cell) : cell.value)
        + (cell.done ? " ✓" : "") : "–";
    return E("table", { class: "held" },
      E("thead", {}, E("tr", {}, E("th", {}, "block"),
          ...ranks.map((rank) => E("th", { scope: "col" }, `rank ${rank}`)))),
      E("tbody", {}, ...board.rows.map((row, i) => E("tr", {},
          E("th", { scope: "row" }, row.group.startsWith("scratch") ? `${row.group.slice(9)} ${row.name}` : row.name),
        ...ranks.map((rank) => E("td", {}, words(by.get(`${rank}|${i}`))))))));
  },

  code(data, schedule) {
    const facts = data.algorithms[`${schedule.collective}/${explore.nameOf(schedule.spec)}`];
    return facts.code.flatMap((name) => [explore.element("p", { class: "small soft file" }, name),
      explore.element("pre", { tabindex: "0", "aria-label": `Source of ${name}` },
          explore.panels.python(data.code[name]))]);
  },

  /** Python with its strings, comments, words and numbers told apart. */
  python(text) {
    const code = explore.element("code");
    const words = "def|return|yield|if|else|elif|for|in|while|lambda|not|and|or|is|from|import|None|True|False|class";
    const token = new RegExp([/("""[\s\S]*?"""|f?"(?:\\.|[^"\\\n])*"|f?'(?:\\.|[^'\\\n])*'|#.*)/.source,
      `\\b(${words})\\b`, /\b(Send|Recv|RecvReduce|Reduce|Copy|Loc)\b/.source,
      /(@\w+)/.source, /\b(\d+)\b/.source].join("|"), "g");
    let last = 0;
    for (const match of text.matchAll(token)) {
      const kind = ["string", "word", "op", "decorator", "digit"][match.slice(1)
          .findIndex((group) => group !== undefined)];
      code.append(text.slice(last, match.index), explore.element("span", { class: kind }, match[0]));
      last = match.index + match[0].length;
    }
    code.append(text.slice(last));
    return code;
  },

  fault(data, schedule, go) {
    const { fault } = schedule, E = explore.element, meaning = data.collectives[schedule.collective];
    if (!fault) return [];
    const button = E("button", { type: "button" }, `Go to step ${fault.time}`);
    button.onclick = () => go(fault.time);
    const where = ([rank, buffer, block, missing, doubled, surplus]) => {
      const writes = schedule.writes.filter((write) => write[1] === rank && schedule.buffers[write[2]] === buffer
          && write[3] === block && write[0] > 0);
      const since = missing.length && writes.length
          ? ` It was last written in step ${writes[writes.length - 1][0]}.` : "";
      const what = [missing.length && `misses the contribution of ${explore.spans(missing)}`,
          doubled.length && `would count the contribution of ${explore.spans(doubled)} twice`,
        surplus.length && `has the contribution of ${explore.spans(surplus)}, which it must not`];
      const name = `${buffer === "value" ? "" : `${buffer} `}${explore.blockName(meaning, schedule, block)}`;
      return E("li", {}, `Rank ${rank}, ${name}: ${what.filter(Boolean).join(", and ") || "out of order"}.${since}`);
    };
    const wait = ([rank, peer, sends, blocks]) =>
      E("li", {}, `Rank ${rank} waits for rank ${peer} to ${sends ? "receive" : "send"} `
        + `${explore.blockNames(meaning, schedule, blocks) || "a token"}.`);
    return [E("h3", {}, "The verifier rejects this schedule"), E("p", { class: "small" }, fault.words),
      E("ul", {}, ...fault.places.slice(0, 8).map(where), ...fault.waits.slice(0, 8).map(wait)), button];
  },
};

explore.nameOf = (spec) => spec.split("(")[0];
