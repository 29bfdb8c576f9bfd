// Makes elements, and the drawings: a sparkline, a bar of time left, the stages of a batch, lines over time.

import { age, compact, duration, left, mark, moment, now, rate, span } from "./words.js";

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

function s(tag, properties, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

// Makes an age that tick() updates every second.
export function since(atMs, before = "", after = "") {
  const element = h("span", { "data-since": atMs, title: moment(atMs) });
  element.write = () => (element.textContent = before + age(now() - atMs) + after);
  element.write();
  return element;
}

export function tick(root) {
  for (const element of root.querySelectorAll("[data-since], [data-ends]")) element.write();
}

// Draws rows/s of the newest batches, with time from left to right up to `until`; a pause lies at the bottom.
export function sparkline(rates, until, width = 104, height = 22) {
  if (!rates.length) return null;
  const from = rates[0][0];
  const to = Math.max(until, rates.at(-1)[1]);
  const top = Math.max(...rates.map((each) => each[2]), 1e-9);
  const x = (ms) => (1 + ((ms - from) * (width - 2)) / Math.max(1, to - from)).toFixed(1);
  const y = (value) => (height - 2 - (value / top) * (height - 5)).toFixed(1);
  const area = rates.map(([begin, end, value]) => `M${x(begin)},${y(0)}V${y(value)}H${x(end)}V${y(0)}Z`).join("");
  const last = rates.at(-1);
  return s(
    "svg",
    { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `Rows a second over ${duration(to - from)}: at most ${rate(top)}, ${rate(last[2])} in the newest batch, which ended ${age(to - last[1])} before the right edge` },
    s("path", { class: "spark-base", d: `M1,${y(0)}H${width - 1}` }),
    s("path", { class: "spark-area", d: area }),
  );
}

// Draws a bar that ends at the timeout of its work. Below a tenth it is too late to settle in peace.
export function timeLeft(openedAt, endsAt, what) {
  if (endsAt === null) {
    return h("span", { class: "left" }, since(openedAt, "", " old"), h("span", { class: "muted" }, " no timeout"));
  }
  const fill = h("span", { class: "left-fill" });
  const words = h("span", { class: "left-words" });
  const track = h("span", { class: "left-track", role: "progressbar", "aria-label": `Time left: ${what}`, "aria-valuemin": 0, "aria-valuemax": 100 }, fill);
  const element = h("span", { class: "left", "data-ends": endsAt }, track, words);
  element.write = () => {
    const part = Math.min(1, Math.max(0, (endsAt - now()) / Math.max(1, endsAt - openedAt)));
    fill.style.width = `${(part * 100).toFixed(1)}%`;
    track.setAttribute("aria-valuenow", Math.round(part * 100));
    track.setAttribute("aria-valuetext", left(endsAt));
    element.dataset.urgency = part < 0.1 ? "now" : part < 0.5 ? "soon" : "calm";
    words.textContent = left(endsAt);
  };
  element.write();
  return element;
}

// Draws a batch from left (planned) to right (committed), all batches on one scale; a longer one is cut, and says so.
export function journey(batch, scale) {
  const steps = stepsOf(batch);
  const isLonger = steps.length && steps.at(-1).to - batch.planned_at_ms > scale;
  const track = h("div", { class: `journey${isLonger ? " longer" : ""}`, role: "img", "aria-label": `Batch ${batch.batch}: ${inWords(steps)}` });
  const of = (ms) => `${Math.min(100, Math.max(0, (ms / scale) * 100)).toFixed(2)}%`;
  for (const step of steps) {
    const [begin, end] = [step.from, step.to].map((at) => Math.min(scale, at - batch.planned_at_ms));
    if (begin >= scale) continue;
    const part = h("span", { class: `step step-${step.name}${step.goesOn ? " goes-on" : ""}`, title: `${step.label}: ${duration(step.to - step.from)}` });
    part.style.left = of(begin);
    part.style.width = of(end - begin);
    track.append(part);
  }
  for (const ended of batch.attempts.filter((each) => each.verdict === "abort")) {
    const said = h("span", { class: "aborted", title: `Attempt ${ended.attempt} given up: ${ended.reason}` }, "×");
    said.style.left = `clamp(5px, ${of(ended.decided_at_ms - batch.planned_at_ms)}, calc(100% - 5px))`; // not cut off at the edges
    track.append(said);
  }
  return track;
}

// Lists the stages of a batch in order. Their times are of several machines' clocks: none may go backwards.
export function stepsOf(batch) {
  const commits = batch.attempts.filter((each) => each.verdict === "commit");
  const [first, lastCommit] = [commits[0], commits.at(-1)];
  const end = batch.committed_at_ms;
  const places = [
    ["evaluate", "planned until its first work was opened", first?.opened_at_ms?.[0]],
    ["prepare", "prepared until decided", first?.decided_at_ms],
    ["replay", "replayed until decided again", commits.length > 1 ? lastCommit.decided_at_ms : undefined],
    first ? ["settle", "decided until settled and committed", end ?? undefined] : ["evaluate", "planned until committed, its decisions are pruned", end ?? undefined],
  ];
  const steps = [];
  let from = batch.planned_at_ms;
  for (const [name, label, at] of places) {
    if (at === undefined || at === null) continue;
    const to = Math.max(from, at);
    steps.push({ name, label, from, to });
    from = to;
  }
  if (end === null) {
    const going = first ? ["settle", "settling"] : batch.stage === "preparing" ? ["prepare", "preparing"] : ["evaluate", "planned"];
    steps.push({ name: going[0], label: `${going[1]}, not committed yet`, from, to: Math.max(from, now()), goesOn: true });
  }
  return steps;
}

const inWords = (steps) => steps.map((each) => `${each.label} ${duration(each.to - each.from)}`).join(", ");

// --- lines over time -------------------------------------------------------------------------------------------------

const APART = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800].map((seconds) => seconds * 1000);
const ROOM = { left: 46, right: 10, top: 18, bottom: 4 };

// The marks of a time axis: at round times of the reader's own clock, as many as have room.
export function marksOf(from, to, atMost) {
  const apart = APART.find((each) => (to - from) / each <= atMost) ?? APART.at(-1);
  const shift = new Date(from).getTimezoneOffset() * 60000;
  const marks = [];
  for (let at = Math.ceil((from - shift) / apart) * apart + shift; at <= to; at += apart) marks.push(at);
  return { marks, apart };
}

// Rounds a largest value up to what people count in: 1, 2, 5, …; of time, seconds, minutes and hours.
export function topOf(value, isTime) {
  if (!(value > 0)) return isTime ? 1000 : 1;
  if (isTime && value <= APART.at(-1)) return APART.find((each) => each >= value);
  const step = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((each) => each * step).find((each) => each >= value * 0.999);
}

// Draws one line over time: `path` is a list of [ms, value], null for a gap. The scale is at the left.
export function line({ title, path, from, to, width, height = 74, events, isTime = false, says = isTime ? span : compact }) {
  const highest = Math.max(0, ...path.filter(Boolean).map((each) => each[1]));
  const top = topOf(highest, isTime);
  const x = (ms) => ROOM.left + ((Math.min(to, Math.max(from, ms)) - from) / Math.max(1, to - from)) * (width - ROOM.left - ROOM.right);
  const y = (value) => height - ROOM.bottom - (value / top) * (height - ROOM.top - ROOM.bottom);
  const begun = [];
  let pen = "M";
  for (const point of path) {
    if (point === null) { pen = "M"; continue; }
    begun.push(`${pen}${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`);
    pen = "L";
  }
  const { marks } = marksOf(from, to, Math.max(2, Math.floor(width / 110)));
  return s("svg", { class: "line", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}, from ${moment(from)} to ${moment(to)}: at most ${says(highest)}` },
    ...marks.map((at) => s("path", { class: "grid", d: `M${x(at)},${ROOM.top}V${height - ROOM.bottom}` })),
    ...[0, top / 2, top].map((value) => s("path", { class: value ? "grid" : "base", d: `M${ROOM.left},${y(value)}H${width - ROOM.right}` })),
    ...[0, top].map((value) => s("text", { class: "scale", x: ROOM.left - 6, y: y(value) + 4, "text-anchor": "end" }, value ? says(value) : "0")),
    s("text", { class: "name", x: ROOM.left, y: 11 }, title),
    ...events.map((each) => s("path", { class: "event", "data-kind": each.kind, d: `M${x(each.at_ms)},${ROOM.top}V${height - ROOM.bottom}` })),
    s("path", { class: "drawn", d: begun.join("") }));
}

// Draws the time axis below the lines, with a mark of each event in a row above the times.
export function axis({ from, to, width, events }) {
  const x = (ms) => ROOM.left + ((ms - from) / Math.max(1, to - from)) * (width - ROOM.left - ROOM.right);
  const { marks, apart } = marksOf(from, to, Math.max(2, Math.floor(width / 110)));
  return s("svg", { class: "line axis", width, height: 36, viewBox: `0 0 ${width} 36`, "aria-hidden": "true" },
    ...events.map((each) => s("circle", { class: "dot", "data-kind": each.kind, cx: x(each.at_ms), cy: 7, r: 4 }, s("title", {}, `${moment(each.at_ms)} ${each.what} ${each.who}`))),
    ...marks.map((at) => s("text", { class: "scale", x: Math.min(width - 30, Math.max(30, x(at))), y: 29, "text-anchor": "middle" }, mark(at, apart))));
}
