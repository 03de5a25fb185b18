"use strict";
// Reads the page's data, and answers what is where after a step. Nothing here knows an algorithm: values come from
// the symbolic execution.
const explore = (window.explore = { failures: [] });

explore.load = async () => {
  const packed = atob(document.getElementById("data").textContent.trim());
  const bytes = Uint8Array.from(packed, (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
};

/** Ranks of "0-2,4". */
explore.ranks = (text) =>
  text ? text.split(",").flatMap((run) => {
    const [first, last = first] = run.split("-").map(Number);
    return Array.from({ length: last - first + 1 }, (_, i) => first + i);
  }) : [];

/** The short form of some numbers: 0-2,4. */
explore.spans = (numbers) => {
  const runs = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const run = runs[runs.length - 1];
    if (run && run[1] === number - 1) run[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(",");
};

/** A part of the vector's n bytes in words, as `mpicoll show` has it. */
explore.share = (ofN) => {
  if (Math.abs(ofN) < 1e-12) return "0";
  if (Math.abs(ofN - 1) < 1e-12) return "n";
  return `${Number(ofN.toPrecision(3))} n`;
};

explore.fraction = (text) => {
  const [above, below = "1"] = String(text).split("/");
  return Number(above) / Number(below);
};

/** The places of all ranks after step t, or at a time in µs: "rank|buffer|block" -> {value, end, reduced, done}. */
explore.frame = (data, schedule, t, us = null) => {
  const places = new Map();
  schedule.writes.forEach(([step, rank, buffer, block, value, flags], i) => {
    const end = us === null ? step : schedule.time.writes[i];
    if (end <= (us ?? t)) {
      places.set(`${rank}|${schedule.buffers[buffer]}|${block}`,
        { value: data.words[value], end, reduced: Boolean(flags & 1), done: Boolean(flags & 2) });
    }
  });
  return places;
};

/** The messages of step t. */
explore.messages = (data, schedule, t) =>
  explore.unpacked(data, schedule.messages.filter((message) => message[0] + 1 === t));

explore.unpacked = (data, messages) =>
  messages.map(
    ([start, source, destination, strand, flags, buffer, blocks, values]) => ({
      start, source, destination, strand, buffer, blocks,
      reduces: Boolean(flags & 1), encoded: Boolean(flags & 2), values: values.map((value) => data.words[value]),
    }));

/** Whether a message has arrived after step t, or at a time in µs. */
explore.hasArrived = (schedule, i, t, us = null) =>
  us === null ? schedule.messages[i][0] + 1 <= t : schedule.time.messages[i][1] <= us;

/** Steps, messages and the most bytes that a rank sent or received up to step t, or to a time in µs. */
explore.soFar = (schedule, t, us = null) => {
  const sent = new Array(schedule.p).fill(0), received = new Array(schedule.p).fill(0);
  let messages = 0, steps = 0;
  schedule.messages.forEach(([start, source, destination, , flags, , blocks], i) => {
    if (!explore.hasArrived(schedule, i, t, us)) return;
    messages += 1;
    steps = Math.max(steps, start + 1);
    const bytes = blocks.length * (flags & 2 ? schedule.code_share : 1) * explore.fraction(schedule.of_n);
    sent[source] += bytes;
    received[destination] += bytes;
  });
  return { steps: us === null ? Math.min(t, schedule.steps) : steps, messages,
      bytes: Math.max(0, ...sent, ...received) };
};

/** A block's name: b2, or 0→3; of the edges of a graph the schedule has the names. */
explore.blockName = (meaning, schedule, block) => {
  if (meaning.naming === "none") return "";
  if (schedule.names) return schedule.names[block];
  if (meaning.naming === "pair") return `${Math.floor(block / schedule.p)}→${block % schedule.p}`;
  return `b${block}`;
};

explore.blockNames = (meaning, schedule, blocks, most = 2) => {
  if (meaning.naming === "none" || !blocks.length) return "";
  if (meaning.naming !== "pair" && !schedule.names) return `b${explore.spans(blocks)}`;
  const names = blocks.slice(0, most).map((block) => explore.blockName(meaning, schedule, block)).join(" ");
  return blocks.length > most ? `${names} +${blocks.length - most}` : names;
};

// -- links ------------------------------------------------------------------------------------------------------

/** {sides: [key, …], step, us} of a link such as #allreduce/ring/p=5/step=3&bcast/chain/p=5. */
explore.parseLink = (hash) => {
  const state = { sides: [], step: 0, us: null };
  for (const part of hash.replace(/^#/, "").split("&").filter(Boolean)) {
    const pieces = part.split("/").map((piece) => {
      try { return decodeURIComponent(piece); } catch { return piece; }
    });
    const at = pieces.findIndex((piece) => /^step=\d+$/.test(piece));
    if (at >= 0) state.step = Number(pieces.splice(at, 1)[0].slice(5));
    const time = pieces.findIndex((piece) => /^us=\d+(\.\d+)?$/.test(piece));
    if (time >= 0) state.us = Number(pieces.splice(time, 1)[0].slice(3));
    state.sides.push(pieces.join("/"));
  }
  return state;
};

explore.link = (keys, position) =>
  "#" + keys.map((key, i) => key.split("/").map((piece) => encodeURIComponent(piece).replace(/%3D/g, "=")
    .replace(/%2C/g, ",")).join("/") + (i ? "" : `/${position}`)).join("&");

// -- elements ---------------------------------------------------------------------------------------------------

explore.element = (tag, attributes = {}, ...children) => explore.fill(document.createElement(tag), attributes,
    children);
explore.svg = (tag, attributes = {}, ...children) =>
  explore.fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
explore.fill = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

// -- colours: from dark to light by rank, so that they differ in lightness too ------------------------------------

explore.anchors = {
  light: [[38, 34, 130], [112, 26, 160], [190, 50, 130], [236, 112, 60], [246, 190, 50]],
  dark: [[98, 110, 245], [160, 100, 240], [226, 104, 170], [248, 150, 84], [252, 218, 96]],
};
explore.colour = (rank, p) => {
  const anchors = explore.anchors[document.documentElement.dataset.theme] || explore.anchors.light;
  const x = p > 1 ? (rank / (p - 1)) * (anchors.length - 1) : 0;
  const low = Math.min(anchors.length - 2, Math.floor(x));
  return anchors[low].map((value, i) => Math.round(value + (anchors[low + 1][i] - value) * (x - low)));
};
explore.css = (colour) => `rgb(${colour.join(" ")})`;
/** Black or white, whichever is easier to read on a colour. */
explore.inkOn = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#111" : "#fff");
