// The page: what is chosen, the step, and who is asked to draw it.
(async () => {
  const E = explore.element, $ = (id) => document.getElementById(id), root = document.documentElement;
  const stored = (() => { try { return localStorage.getItem("mpicoll-theme"); } catch { return null; } })();
  root.dataset.theme = stored || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  let data;
  try {
    data = await explore.load();
  } catch (error) {
    explore.failures.push(String(error));
    $("sides").textContent = `This page cannot be shown: ${error}. It needs a browser of 2023 or later.`;
    return;
  }
  explore.data = data;
  const keys = Object.keys(data.schedules);
  const fieldsOf = (key) => {
    const schedule = data.schedules[key];
    return { key, collective: schedule.collective, algorithm: explore.nameOf(schedule.spec), spec: schedule.spec,
      p: schedule.p, root: schedule.root, order: schedule.ordered ? "rank" : "any" };
  };
  const entries = keys.map(fieldsOf);
  explore.measured.expand(data); // after the choices above, which are of the page's own schedules
  const { trainings = {} } = data;
  const isKnown = (key) => key in data.schedules || key in trainings;
  const state = { sides: [], step: 0, timer: null, inTime: false }; // in time, a step is a tick of the slider

  // -- which schedule ---------------------------------------------------------------------------------------------

  const WEIGHTS = { collective: 64, algorithm: 32, spec: 16, p: 8, root: 4, order: 2 };
  /** The schedule most like what is wanted; the field that was just chosen counts most. */
  function nearest(wanted, chosen) {
    const score = (entry) => Object.entries(WEIGHTS).reduce(
      (sum, [field, weight]) => sum + (entry[field] === wanted[field] ? weight : 0)
          + (field === chosen && entry[field] === wanted[field] ? 1000 : 0),
      -Math.abs(entry.p - wanted.p) / 100);
    return entries.reduce((best, entry) => (score(entry) > score(best) ? entry : best)).key;
  }

  const distinct = (field,
      matches) => [...new Set(entries.filter((entry) => Object.entries(matches).every(([k, v]) => entry[k] === v))
      .map((entry) => entry[field]))];

  function chooser(side) {
    const now = fieldsOf(side.key), { collective, algorithm, spec, p, root: at } = now;
    const specWords = (value) => value === algorithm ? "defaults" : value.slice(algorithm.length + 1, -1);
    const fields = [
      ["collective", "collective", distinct("collective", {}), String],
      ["algorithm", "algorithm", distinct("algorithm", { collective }), String],
      ["parameters", "spec", distinct("spec", { collective, algorithm }), specWords],
      ["p", "p", distinct("p", { collective, algorithm }).sort((a, b) => a - b), String],
      ["root", "root", distinct("root", { collective, spec, p }).sort((a, b) => a - b), String],
      ["operator", "order", distinct("order", { collective, spec, p, root: at }), (value) => value === "rank"
          ? "in rank order" : "commutes"],
    ];
    side.chooser.replaceChildren(...fields.filter(([name, , values]) => values.length > 1 || ["collective",
        "algorithm", "p"].includes(name)).map(([name, field, values, words]) => {
      const list = E("select", { "data-field": field });
      values.forEach((value) => list.append(new Option(words(value), value, false, value === now[field])));
      list.onchange = () => {
        const value = values[list.selectedIndex], wanted = { ...now, [field]: value };
        if (field === "algorithm" || field === "collective") wanted.spec = wanted.algorithm;
        choose(side, nearest(wanted, field));
        side.chooser.querySelector(`[data-field="${field}"]`)?.focus();
      };
      return E("label", { class: `field ${field}` }, E("span", {}, name), list);
    }));
  }

  // -- the two sides ------------------------------------------------------------------------------------------------

  function makeSide(key, name) {
    if (key in trainings) return new explore.Training(data, key, name, go, (other, side) => choose(side, other));
    const part = (kind) => E("div", { class: kind });
    const side = { key, chooser: part("chooser"), headline: E("h2"), idea: E("p", { class: "soft idea" }),
        fault: E("div", { class: "card faulty", role: "alert" }),
      board: part("scroll boardbox"), spacetime: part("timebox"), numbers: part("numberbox"),
          load: part("loadbox"), code: part("codebox"), table: part("scroll") };
    side.details = E("details", {}, E("summary", {}, "The same as a table"), side.table);
    side.details.ontoggle = () => draw();
    side.node = E("section", { class: "side", "aria-label": name }, side.chooser, side.headline, side.idea, side.fault,
      E("div", { class: "pictures" }, E("div", { class: "card boardcard" }, side.board, side.details),
        E("div", { class: "card timecard" }, E("h3", {}, "Space and time"), side.spacetime)),
      E("div", { class: "facts" }, E("div", { class: "card" }, E("h3", {}, "Steps and bytes"), side.numbers, side.load),
        E("div", { class: "card codecard" }, E("h3", {}, "The algorithm"), side.code)));
    return side;
  }

  function choose(side, key) {
    if (key in trainings) return show(state.sides.map((other) => (other === side ? key : other.key)), 0);
    side.key = key;
    setUp(side);
    update();
  }

  function setUp(side) {
    if (side.key in trainings) return;
    side.schedule = data.schedules[side.key];
    side.picture = new explore.Board(data, side.schedule);
    side.gantt = side.schedule.time && new explore.Gantt(data, side.schedule);
    side.time = new explore.SpaceTime(data, side.schedule, (t) => go(t));
    side.headline.textContent = side.schedule.headline;
    side.idea.textContent = data.algorithms[`${side.schedule.collective}/${explore.nameOf(side.schedule.spec)}`].idea;
    side.fault.replaceChildren(...explore.panels.fault(data, side.schedule, go));
    side.fault.hidden = !side.schedule.fault;
    side.code.replaceChildren(...explore.panels.code(data, side.schedule));
    chooser(side);
  }

  function show(wanted, step) {
    state.sides = wanted.map((key, i) => makeSide(key, wanted.length > 1 ? ["Left", "Right"][i] : "Algorithm"));
    $("sides").replaceChildren(...state.sides.map((side) => side.node));
    $("sides").classList.toggle("two", wanted.length > 1);
    $("sides").classList.toggle("trains", wanted.some((key) => key in trainings));
    $("compare").hidden = wanted.some((key) => key in trainings) && Object.keys(trainings).length < 2;
    $("compare").setAttribute("aria-pressed", String(wanted.length > 1));
    state.sides.forEach(setUp);
    state.step = step;
    update();
  }

  // -- steps --------------------------------------------------------------------------------------------------------

  const longest = () => Math.max(...state.sides.map((side) => side.schedule.time.us));
  const last = () => state.inTime ? explore.TICKS : Math.max(...state.sides.map((side) => side.schedule.steps));
  const now = () => state.inTime ? (state.step / explore.TICKS) * longest() : null;

  /** Between steps and time, where all that is shown has times. */
  function setMode(inTime, position = 0) {
    state.inTime = Boolean(inTime && data.clock && state.sides.every((side) => side.schedule.time));
    $("mode").setAttribute("aria-pressed", String(state.inTime));
    state.step = position;
  }

  function go(step) {
    state.step = Math.max(0, Math.min(last(), step));
    update();
  }

  function update() {
    if (state.inTime && !state.sides.every((side) => side.schedule.time)) setMode(false);
    state.step = Math.min(state.step, last());
    const us = now(), position = us === null ? `step=${state.step}` : `us=${Number(us.toPrecision(4))}`;
    $("slider").max = last();
    $("slider").value = state.step;
    const count = us === null ? [`${state.sides[0].unit || "step"} ${state.step}`, last()] : [explore.microseconds(us),
        explore.microseconds(longest())];
    $("slider").setAttribute("aria-valuetext", count.join(" of "));
    $("count").textContent = count.join(" / ");
    const sentences = state.sides.map((side) => side.sentence ? side.sentence(state.step)
        : explore.panels.sentence(data, side.schedule, state.step, us));
    $("words").textContent = sentences.length > 1 ? `Left: ${sentences[0]} Right: ${sentences[1]}` : sentences[0];
    const hash = explore.link(state.sides.map((side) => side.key), position);
    if (location.hash !== hash) try { history.replaceState(null, "", hash); } catch { /* a frame has no address */ }
    document.querySelectorAll("#tours button")
        .forEach((button) => button.setAttribute("aria-pressed",
        String(button.dataset.keys === state.sides.map((side) => side.key).join("&"))));
    tourWords();
    const shown = state.sides.map((side) => side.key).join("&");
    if (shown !== state.costsOf) { state.costsOf = shown; costs(); measured(); }
    draw();
  }

  function draw() {
    for (const side of state.sides) {
      if (side.key in trainings) side.draw(state.step);
      if (!side.picture) continue;
      const t = Math.min(state.step, side.schedule.steps), us = now();
      if (us === null) side.picture.draw(side.board, t);
      else side.picture.draw(side.board, t, us, us - longest() / 30);
      if (us === null) side.time.draw(side.spacetime, t);
      else side.gantt.draw(side.spacetime, side.schedule.call ? us : Math.min(us, side.schedule.time.us), longest());
      side.numbers.replaceChildren(...explore.panels.numbers(data, side.schedule, t, us));
      side.load.replaceChildren(...explore.panels.load(side.schedule, t, us));
      if (side.details.open) side.table.replaceChildren(explore.panels.table(side.picture, side.schedule, t, us));
    }
  }

  function play(on = !state.timer) {
    clearInterval(state.timer);
    state.timer = null;
    if (on) {
      if (state.step >= last()) go(0);
      state.timer = setInterval(() => {
        go(state.step + 1);
        if (state.step >= last()) play(false);
      }, Number($("speed").value) / (state.inTime ? 24 : 1));
    }
    $("play").querySelector("path").setAttribute("d", on ? "M3 2h4v12H3zM9 2h4v12H9z" : "M4 2v12l9-6z");
    $("play").querySelector("span").textContent = on ? "Pause" : "Play";
    $("play").setAttribute("aria-label", on ? "Pause" : "Play");
  }

  // -- what can be pressed --------------------------------------------------------------------------------------------

  const step = (to) => () => { play(false); go(to()); };
  $("first").onclick = step(() => 0);
  $("back").onclick = step(() => state.step - 1);
  $("next").onclick = step(() => state.step + 1);
  $("last").onclick = step(last);
  $("play").onclick = () => play();
  $("slider").oninput = () => { play(false); go(Number($("slider").value)); };
  $("speed").onchange = () => state.timer && play(true);
  $("theme").onclick = () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("mpicoll-theme", root.dataset.theme); } catch { /* a file has no storage everywhere */ }
    draw();
  };
  $("mode").hidden = !data.clock;
  if (data.clock) $("mode").title = `${data.clock.network}, ${explore.bytes(data.clock.nbytes)}`;
  $("mode").onclick = () => { play(false); setMode(!state.inTime); update(); };
  $("compare").onclick = () => {
    const [first] = state.sides.map((side) => side.key);
    if (state.sides.length > 1) return show([first], state.step);
    if (first in trainings) return show([first, Object.keys(trainings).find((key) => key !== first)], 0);
    if (data.schedules[first].beside) return show([first, data.schedules[first].beside], state.step);
    const now = fieldsOf(first), others = entries.filter((entry) => entry.collective === now.collective
        && entry.algorithm !== now.algorithm);
    const best = others.find((entry) => entry.p === now.p && entry.algorithm === "parameter_server")
        || others.find((entry) => entry.p === now.p) || others[0];
    show([first, best ? best.key : keys.find((key) => key !== first) || first], state.step);
  };
  $("link").onclick = async () => {
    try { await navigator.clipboard.writeText(location.href); $("link").textContent = "Copied";
        } catch { $("link").textContent = "It is in the address bar"; }
    setTimeout(() => ($("link").textContent = "Copy link"), 1500);
  };
  $("skip").onclick = (event) => { event.preventDefault(); $("sides").scrollIntoView();
      state.sides[0].node.querySelector("select, button, a")?.focus(); };

  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, input, pre")) return;
    const isButton = event.target.closest("button, summary, a");
    const acts = { ArrowRight: () => go(state.step + 1), ArrowLeft: () => go(state.step - 1), Home: () => go(0),
        End: () => go(last()),
      " ": isButton ? null : () => play(), c: () => $("compare").click(), t: () => $("theme").click() };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    if (event.key.length > 1) play(false);
    act();
  });
  let width = 0;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
  addEventListener("hashchange", () => follow());

  // -- tours and links ----------------------------------------------------------------------------------------------

  function measured() {
    $("measured").hidden = !data.measured;
    $("sides").classList.toggle("recorded", state.sides.every((side) => side.schedule.call));
    if (data.measured) $("measured").replaceChildren(...explore.measured.panel(data,
        state.sides.map((side) => side.key), (pair) => { play(false); showInTime(pair); }));
  }

  function showInTime(wanted) {
    show(wanted, 0);
    setMode(true);
    update();
  }

  function costs() {
    const keys = state.sides.map((side) => data.schedules[side.key]?.base ?? side.key);
    $("cost").hidden = !data.clock;
    if (data.clock) $("cost").replaceChildren(E("h3", {}, "Cost over size"),
        ...explore.costs(data, keys, (key) => choose(state.sides[0], key)));
  }

  function tourWords() {
    const now = state.sides.map((side) => side.key).join("&");
    const tour = data.presets.find((preset) => [preset.left, preset.right].filter(Boolean).join("&") === now);
    $("tour").hidden = !tour;
    $("tour").textContent = tour ? tour.words : "";
  }

  data.presets.forEach((preset) => {
    const wanted = [preset.left, preset.right].filter(Boolean),
        button = E("button", { type: "button", "aria-pressed": "false" }, preset.title);
    button.dataset.keys = wanted.join("&");
    button.onclick = () => { play(false); show(wanted, 0); };
    $("tours").append(button);
  });

  function follow() {
    const { sides, step: at, us } = explore.parseLink(location.hash);
    const missing = sides.filter((key) => !isKnown(key));
    const [training] = Object.keys(trainings);
    const schedule = data.broken || !data.schedules["allreduce/ring/p=5"] ? keys[0] : "allreduce/ring/p=5";
    const usual = training || schedule;
    const start = data.broken && !sides.length ? data.schedules[usual].fault?.time ?? 0 : 0;
    if (sides.length && !missing.length) {
      setMode(false);
      show(sides.slice(0, 2), at);
      if (us !== null) setMode(true, 0);
      if (state.inTime) state.step = Math.round((us / (longest() || 1)) * explore.TICKS);
      else if (us !== null) state.step = 0;
      update();
    }
    else if (data.measured && !sides.length) showInTime(explore.measured.pairs(data)[0]);
    else show([usual], start);
    if (missing.length) $("words")
        .textContent = `This page has no ${missing.join(" and no ")}; `
        + "mpicoll explore writes one that has, by --algorithms and --ranks.";
  }

  follow();
  root.dataset.ready = "true";
})();
