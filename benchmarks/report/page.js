"use strict";
// Draws what the page's data says, section by section, when a section comes into view. Nothing here knows MPI:
// fields, titles and charts come from the data.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const views = new Map(); // chart element -> what vegaEmbed made there
  const failures = (window.reportFailures = []);

  // -- small helpers -------------------------------------------------------------------------------------------
  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  /** A labelled choice of one of several words: buttons, or a list where they are many. Absent where there is one. */
  function choice(label, words, chosen, choose) {
    if (words.length < 2) return "";
    const box = element("div", { class: "choice", role: "group", "aria-label": label }, element("span", {}, label));
    if (words.length > 4 || words.some((word) => word.length > 40)) {
      const list = element("select", { "aria-label": label });
      words.forEach((word, at) => list.append(new Option(word, at, at === chosen, at === chosen)));
      list.onchange = () => choose(Number(list.value));
      box.append(list);
    } else {
      words.forEach((word, at) => {
        const button = element("button", { type: "button", "aria-pressed": at === chosen }, word);
        button.onclick = () => choose(at);
        box.append(button);
      });
    }
    return box;
  }

  // -- charts --------------------------------------------------------------------------------------------------
  const NOTHING = new Set(["", "null", "undefined", "NaN"]);
  const told = (value, clean) => {
    const lines = Object.entries(value).filter(([, word]) => !NOTHING.has(String(word)));
    const row = ([key, word]) => `<tr><td class="key">${clean(key)}</td><td>${clean(word)}</td></tr>`;
    return `<table>${lines.map(row).join("")}</table>`;
  };
  const actions = { export: true, source: false, compiled: false, editor: false };

  async function draw(box, spec, name, rows, hidden) {
    const wanted = structuredClone(spec);
    wanted.datasets = { [name]: rows };
    wanted.config = data.themes[theme()];
    const turn = (box.turn = (box.turn || 0) + 1);
    try {
      const tooltip = { formatTooltip: told, disableDefaultStyle: true };
      const made = element("div");
      made.style.width = "100%";
      const shown = [...box.children];
      box.append(made);
      const result = await vegaEmbed(made, wanted, { actions, renderer: "svg", tooltip, mode: "vega-lite", logLevel: 1 });
      if (turn !== box.turn) return void (result.finalize(), made.remove()); // overtaken by a later choice
      views.get(box)?.finalize();
      shown.forEach((old) => old.remove());
      views.set(box, result);
      if (hidden) await hide(box, hidden);
      box.dataset.drawn = turn;
    } catch (error) {
      failures.push(String(error));
      box.textContent = `This chart could not be drawn: ${error}`;
      throw error;
    }
  }

  /** Room for a tile per size, and not too much of it. */
  function fit(box, cells, left) {
    const tiles = new Set(cells.map((cell) => cell.size)).size;
    box.style.minWidth = `${left + 100 * tiles}px`;
    box.style.maxWidth = `${left + 180 * tiles}px`;
    return box;
  }

  async function hide(box, hidden) {
    const view = views.get(box)?.view;
    if (view) await view.signal("hidden", [...hidden]).runAsync();
  }

  // -- the legend, for every chart of a section ---------------------------------------------------------------
  const SHAPES = {
    circle: "M13 2.2a3.8 3.8 0 1 1 0 7.6a3.8 3.8 0 1 1 0-7.6", square: "M9.7 2.7h6.6v6.6h-6.6z",
    "triangle-up": "M13 1.8l4.3 7.6h-8.6z", "triangle-down": "M13 10.2l4.3-7.6h-8.6z", diamond: "M13 1.2l4 4.8-4 4.8-4-4.8z",
    cross: "M11.7 2h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
    "triangle-right": "M17.2 6l-7.6-4.3v8.6z", "triangle-left": "M8.8 6l7.6-4.3v8.6z",
  };
  function swatch(contender, kind) {
    const [colour, mark] = data.looks[contender];
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 26 12");
    const [width, dash] = [kind === "native" ? 3 : 2, kind === "unpaired" ? "6 3" : "none"];
    svg.innerHTML = `<line x1="0" x2="26" y1="6" y2="6" stroke="${colour}" stroke-width="${width}" stroke-dasharray="${dash}"/>
      <path d="${SHAPES[mark]}" fill="${colour}"/>`;
    return svg;
  }

  function legend(box, rows, hidden, changed) {
    const kinds = new Map(rows.filter((row) => !row.wrong).map((row) => [row.contender, row.kind]));
    const names = Object.keys(data.looks).filter((name) => kinds.has(name));
    const set = (names) => (hidden.clear(), names.forEach((name) => hidden.add(name)), changed());
    const chips = names.map((name) => {
      const title = "Click to show or hide, double-click to show it alone";
      const chip = element("button", { type: "button", "aria-pressed": !hidden.has(name), title }, swatch(name, kinds.get(name)), name);
      chip.onclick = () => set(hidden.has(name) ? [...hidden].filter((other) => other !== name) : [...hidden, name]);
      chip.ondblclick = () => set(names.filter((other) => other !== name));
      return chip;
    });
    const all = element("button", { type: "button", class: "all" }, hidden.size ? "show all" : kinds.get(names[0]) === "native" ? "only native" : "hide all");
    all.onclick = () => set(hidden.size ? [] : names.filter((name) => kinds.get(name) !== "native"));
    const focused = [...box.children].indexOf(document.activeElement);
    box.replaceChildren(...chips, all);
    if (focused >= 0) box.children[focused]?.focus({ preventScroll: true });
  }

  // -- the table ----------------------------------------------------------------------------------------------
  const number = (value, digits = 3) => (value === undefined ? "" : Number(value.toPrecision(digits)).toLocaleString("en"));
  const spanned = (low, high, form) => (low === undefined ? "" : `${form(low)}–${form(high)}`);
  const RATES = [["GB/s", 1e9], ["MB/s", 1e6], ["kB/s", 1e3], ["B/s", 0]];
  const rate = (value) => {
    if (value === undefined) return "";
    const [unit, factor] = RATES.find(([, least]) => value >= least);
    return `${number(value / (factor || 1))} ${unit}`;
  };
  const COLUMNS = [
    ["algorithm", (row) => (row.chose ? `${row.contender}: ${row.chose}` : row.contender), "words"],
    ["µs", (row) => number(row.time, 4)],
    ["from–to", (row) => spanned(row.time_low, row.time_high, (end) => number(end, 4))],
    ["ratio", (row) => row.ratio?.toFixed(2) ?? ""],
    ["from–to", (row) => spanned(row.ratio_low, row.ratio_high, (end) => end.toFixed(2))],
    ["verdict", (row) => row.verdict ?? "", "words verdict"],
    ["bandwidth", (row) => rate(row.bandwidth)],
    ["of limit", (row) => (row.of_limit === undefined ? "" : `${Math.round(100 * row.of_limit)} %`)],
    ["overlap", (row) => (row.overlap === undefined ? "" : `${Math.round(row.overlap)} %`)],
    ["rounds", (row) => row.rounds ?? ""],
    ["", remarks, "words remarks"],
  ];
  function remarks(row) {
    const words = [row.wrong && "wrong answer", row.kind === "unpaired" && "unpaired", row.late && `${row.late} late`];
    const untimed = row.time === undefined && row.bandwidth === undefined ? "not timed" : "";
    return [...words, untimed, row.note].filter(Boolean).join(", ");
  }
  function table(rows) {
    const used = COLUMNS.filter(([, words]) => rows.some((row) => words(row) !== ""));
    const head = used.map(([name, , kind]) => element("th", { class: kind || "" }, name));
    const body = rows.map((row, at) => {
      const first = !at || rows[at - 1].size !== row.size;
      const times = rows.filter((other) => other.size === row.size && !other.wrong && other.time !== undefined);
      const fastest = !row.wrong && row.time !== undefined && times.every((other) => row.time <= other.time);
      const cells = used.map(([name, words, kind]) => {
        const flag = name === "verdict" ? row.verdict ?? "" : row.wrong && kind?.includes("remarks") ? "wrong" : "";
        return element("td", { class: `${kind || ""} ${flag}` }, String(words(row)));
      });
      return element("tr", { class: `${first ? "first" : ""} ${fastest ? "fastest" : ""}` }, element("td", {}, first ? row.bytes : ""), ...cells);
    });
    return element("table", {}, element("thead", {}, element("tr", {}, element("th", {}, "size"), ...head)), element("tbody", {}, ...body));
  }

  // -- a collective's section ---------------------------------------------------------------------------------
  class Section {
    constructor(box, collective) {
      this.box = box;
      this.collective = collective;
      this.hidden = new Set();
      this.at = { setting: 0, place: collective.settings[0].places.length - 1, measure: "time", family: 0, size: -1 };
      this.find("details.card").addEventListener("toggle", () => this.table());
    }
    find(selector) { return this.box.querySelector(selector); }
    get setting() { return this.collective.settings[this.at.setting]; }
    get place() { return this.setting.places[this.at.place]; }
    get sizes() { return new Set(this.place.rows.map((row) => row.size).filter((size) => size > 0)).size; }
    get charts() { return [this.find(".curves"), this.find(".scaling")]; }

    choose(what, at) {
      const { title } = this.place;
      this.at[what] = at;
      if (what === "setting") {
        const same = this.setting.places.findIndex((place) => place.title === title);
        this.at.place = same < 0 ? this.setting.places.length - 1 : same;
        this.at.family = 0;
        this.at.size = -1;
      }
      if (what === "family") this.at.size = -1;
      return this.draw();
    }

    /** All but the charts, for which it leaves room: so that nothing moves when they come. */
    frame() {
      const { setting, place, at } = this;
      const measures = Object.keys(data.measures).filter((measure) => place.rows.some((row) => row[measure] !== undefined));
      if (!measures.includes(at.measure)) at.measure = measures[0] ?? "time";
      this.find(".controls").replaceChildren(
        choice("call", this.collective.settings.map((each) => each.variant), at.setting, (n) => this.choose("setting", n)),
        choice("on", setting.places.map((each) => each.title), at.place, (n) => this.choose("place", n)),
        choice("show", measures.map((each) => data.measures[each]), measures.indexOf(at.measure), (n) => this.choose("measure", measures[n])),
      );
      this.legend();
      this.caption();
      this.table();
      const cells = setting.places.filter((each) => each.cells.length).length;
      this.find(".best").hidden = !cells;
      this.find(".map").style.minHeight = `${60 * cells + 40}px`;
      this.find(".dear").hidden = !this.priced.length;
      this.find(".price").style.minHeight = `${56 * cells + 40}px`;
      this.find(".growth").hidden = !setting.families.length;
      this.find(".curves").classList.toggle("short", this.sizes < 2);
    }

    async draw() {
      this.frame();
      await Promise.all([this.curves(), this.map(), this.price(), this.scaling()]);
    }

    legend() {
      const rows = this.setting.places.flatMap((place) => place.rows).filter((row) => row.time !== undefined || row.bandwidth !== undefined);
      legend(this.find(".legend"), rows, this.hidden, () => (this.legend(), this.charts.forEach((box) => hide(box, this.hidden))));
    }

    caption() {
      const untimed = new Map(this.place.rows.filter((row) => row.time === undefined && row.note).map((row) => [row.contender, row.note]));
      const wrong = new Set(this.place.rows.filter((row) => row.wrong).map((row) => row.contender));
      const words = [...untimed].map(([name, note]) => `${name}: ${note}`);
      if (wrong.size) words.unshift(`Left out for wrong answers: ${[...wrong].join(", ")}`);
      this.find(".caption").textContent = words.length ? `${words.join(". ")}.` : "";
    }

    curves() {
      const box = this.find(".curves");
      const spec = this.sizes > 1 ? data.specs.curves[this.at.measure].size : data.specs.dots[this.at.measure];
      return draw(box, spec, "rows", this.place.rows, this.hidden);
    }

    map() {
      const cells = this.setting.places.flatMap((place) => place.cells);
      return cells.length && draw(fit(this.find(".map"), cells, 180), data.specs.best, "cells", cells);
    }

    /** What a fixed choice costs, of what the model says. */
    get priced() { return this.setting.places.flatMap((place) => place.cells).filter((cell) => cell.against); }

    price() {
      return this.priced.length && draw(fit(this.find(".price"), this.priced, 180), data.specs.price, "cells", this.priced);
    }

    scaling() {
      const family = this.setting.families[this.at.family];
      if (!family) return null;
      const rows = family.places.flatMap((at) => this.setting.places[at].rows);
      const base = (row) => row.base ?? row.bytes; // with strong or weak scaling sizes differ, and what they come from does not
      const sizes = [...new Set([...rows].sort((a, b) => a.size - b.size).map(base))];
      const at = this.at.size < 0 ? sizes.length - 1 : this.at.size;
      this.find(".growth .controls").replaceChildren(
        choice("with", this.setting.families.map((each) => `${each.title}, over ${each.x}`), this.at.family, (n) => this.choose("family", n)),
        choice("size", sizes, at, (n) => this.choose("size", n)),
      );
      const shown = rows.filter((row) => base(row) === sizes[at]);
      return draw(this.find(".scaling"), data.specs.curves[this.at.measure][family.x], "rows", shown, this.hidden);
    }

    table() {
      const box = this.find(".table");
      if (box.closest("details").open) box.replaceChildren(table(this.place.rows));
    }
  }

  // -- at a glance --------------------------------------------------------------------------------------------
  class Glance {
    constructor(box) {
      this.box = box;
      this.settings = data.collectives.flatMap((each) => each.settings);
      this.titles = [...new Set(this.settings.flatMap((each) => each.places).filter((place) => place.cells.length).map((place) => place.title))];
      this.place = this.titles.length - 1;
    }
    async draw() {
      this.box.hidden = !this.titles.length;
      const link = document.querySelector('nav a[href="#glance"]');
      link.hidden = this.box.hidden;
      if (this.box.hidden) return;
      this.box.querySelector(".controls").replaceChildren(
        choice("on", this.titles, this.place, (at) => ((this.place = at), this.draw())));
      const cells = this.settings.flatMap((setting) => setting.places
        .filter((place) => place.title === this.titles[this.place])
        .flatMap((place) => place.cells.map((cell) => ({ ...cell, setting: setting.title }))));
      await draw(fit(this.box.querySelector(".chart"), cells, 190), data.specs.glance, "cells", cells);
    }
  }

  // -- the page -----------------------------------------------------------------------------------------------
  const parts = new Map([[document.getElementById("glance"), new Glance(document.getElementById("glance"))]]);
  for (const each of data.collectives) {
    const box = document.getElementById(each.name);
    const section = new Section(box, each);
    section.frame();
    parts.set(box, section);
  }
  const drawn = new Set();
  function theme() { return root.dataset.theme; }
  function setTheme(name) {
    root.dataset.theme = name;
    drawn.forEach((part) => part.draw());
  }
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  document.getElementById("theme").onclick = () => setTheme(theme() === "dark" ? "light" : "dark");

  const near = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting || drawn.has(parts.get(target))) continue;
      drawn.add(parts.get(target));
      parts.get(target).draw();
    }
  }, { rootMargin: "400px" });
  parts.forEach((_, box) => near.observe(box));
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const reading = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) links.get(target.id)?.classList.toggle("here", isIntersecting);
  }, { rootMargin: "-30% 0px -65% 0px" });
  document.querySelectorAll("section").forEach((box) => reading.observe(box));
  addEventListener("beforeprint", () => parts.forEach((part) => (drawn.add(part), part.draw())));
})();
