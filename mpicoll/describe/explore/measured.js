// Recorded calls beside the model's: each is two more schedules, equal to that of the page but for their times.
explore.measured = {
  /** Add both schedules of every recorded call to the page's. */
  expand(data) {
    for (const [key, base] of Object.entries(data.schedules)) for (const call of base.measured || []) {
      const chunks = call.chunk_bytes ? `/chunk=${call.chunk_bytes}` : "";
      const names = ["measured", "model"].map((side) => `${key}/bytes=${call.nbytes}${chunks}/${side}=${call.name}`);
      const titles = [`Measured, call ${call.call}`, `Model of ${data.clock.network}`];
      ["measured", "model"].forEach((side, i) => {
        const time = call[side], has = time.messages.map(Boolean);
        data.schedules[names[i]] = { ...base, call, beside: names[1 - i], base: key, curve: undefined,
          headline: `${titles[i]}, ${explore.bytes(call.nbytes)}: ${base.headline}`,
          messages: base.messages.filter((_, m) => has[m]),
          time: { ...time, messages: time.messages.filter(Boolean) } };
      });
    }
  },

  /** The keys of all pairs: measured, model. */
  pairs: (data) => Object.entries(data.schedules).filter(([key, { call }]) => call && key.includes("/measured="))
    .map(([key, { beside }]) => [key, beside]),

  /** The list of recorded calls, and what there is to say of the one that is shown. */
  panel(data, keys, show) {
    const E = explore.element, pairs = explore.measured.pairs(data), { file, notes } = data.measured;
    const at = pairs.findIndex((pair) => pair.includes(keys[0]) && pair.includes(keys[1] ?? keys[0]));
    const list = E("select", { id: "recorded" });
    list.append(new Option("choose one of them", "", false, at < 0));
    pairs.forEach(([key], i) => list.append(new Option(explore.measured.title(data.schedules[key]), key, false,
        at === i)));
    list.options[0].disabled = true;
    list.onchange = () => { show(pairs[list.selectedIndex - 1]); document.getElementById("recorded").focus(); };
    const chosen = at < 0 ? [E("p", { class: "soft small" }, "Times of other schedules are the model's, "
      + `of ${explore.bytes(data.clock.nbytes)}.`)] : explore.measured.report(data, data.schedules[pairs[at][0]]);
    const left = notes.length ? [E("details", {}, E("summary", {},
        `${notes.length === 1 ? "A kind of call is" : `${notes.length} kinds of calls are`} not shown`),
        E("ul", { class: "small" }, ...notes.map((note) => E("li", {}, note))))] : [];
    return [E("h3", {}, "Measured beside the model"),
      E("label", { class: "field" }, E("span", {}, `recorded calls of ${file}`), list), ...chosen, ...left];
  },

  title({ call, spec, p }) {
    const chunks = call.chunk_bytes ? ` in chunks of ${explore.bytes(call.chunk_bytes)}` : "";
    return `${call.name}, ${explore.bytes(call.nbytes)}${chunks}, ${spec} on ${p} ranks: ${explore.measured.ratio(call)}`;
  },

  ratio({ took: [measured, model] }) {
    return model ? `${Number((measured / model).toPrecision(3))} × the model` : explore.microseconds(measured);
  },

  /** The step, counted from 1, whose time differs most from the model's; none if the call has no steps. */
  worst: ({ steps }) => steps.slice(1, -1).reduce((worst, [measured, model], i) => {
    const apart = Math.abs(measured - model);
    return apart > worst.apart ? { step: i + 1, apart, measured, model } : worst;
  }, { apart: -1 }),

  report(data, { call, time, messages, base }) {
    const E = explore.element, us = explore.microseconds, [measured, model] = call.took;
    const worst = explore.measured.worst(call), several = call.calls > 1 ? `the median of ${call.calls} such calls`
        : "the only such call";
    const late = call.late ? `, once all ranks had begun: the last began ${us(call.late)} after the first` : "";
    const lines = [`Call ${call.call} on ${call.communicator}, ${several}, took ${us(measured)}${late}. `
      + `By the model of ${data.clock.network}, ${data.clock.nodes[data.schedules[base].p]}, it takes ${us(model)}: `
      + `measured is ${explore.measured.ratio(call)}.`];
    if (worst.step) {
      const ofStep = messages.map((message, i) => [message, time.messages[i]])
        .filter(([message]) => message[0] + 1 === worst.step);
      const [final] = ofStep.sort(([, a], [, b]) => b[1] - a[1])[0] || [];
      lines.push(`Step ${worst.step} differs most: ${us(worst.measured)}, by the model ${us(worst.model)}`
        + `${final ? `; its last message to arrive was ${final[1]} to ${final[2]}` : ""}.`);
    }
    const caveats = [`Both have one time axis, on which the model begins when the last rank did. A measured arrow begins `
      + "when the send was posted and ends when the receiver's step was complete. "
      + `The clocks of ranks agree to ${us(data.measured.clock_error)}.`];
    if (call.chunk_bytes) caveats.push("A message is drawn from its first chunk to its last.");
    if (call.varies) caveats.push("The model takes the same bytes for all ranks.");
    const names = ["before the first message", ...call.steps.slice(1, -1).map((_, i) => `step ${i + 1}`),
        "after the last message"];
    const row = ([name, [a, b]]) => E("tr", name === `step ${worst.step}` ? { class: "worst" } : {},
      E("th", { scope: "row" }, name), ...[us(a), us(b), `${a < b ? "−" : a > b ? "+" : ""}${us(Math.abs(a - b))}`]
        .map((words) => E("td", {}, words)));
    const rows = [...names.map((name, i) => [name, call.steps[i]]), ["the call", call.took]];
    const heads = ["", "measured", "model", "difference"].map((name) => E("th", { scope: "col" }, name));
    return [...lines.map((line) => E("p", { class: "finding" }, line)), E("p", { class: "soft small" }, caveats.join(" ")),
      E("details", {}, E("summary", {}, "Step by step"), E("div", { class: "scroll" },
        E("table", { class: "steps" }, E("thead", {}, E("tr", {}, ...heads)), E("tbody", {}, ...rows.map(row)))))];
  },
};
