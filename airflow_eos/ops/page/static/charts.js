// Makes elements, and the three drawings: a sparkline, a bar of time left, the stages of a batch.

import { age, duration, left, moment, now, rate } from "./words.js";

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
  element.append(...children);
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

export function sparkline(rates, width = 88, height = 22) {
  if (rates.length < 2) return null;
  const top = Math.max(...rates, 1e-9);
  const x = (i) => 1 + (i * (width - 4)) / (rates.length - 1);
  const y = (value) => height - 2 - (value / top) * (height - 5);
  const line = rates.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const last = rates.length - 1;
  return s(
    "svg",
    { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `Rows a second of the newest ${rates.length} batches: ${rate(Math.min(...rates))} to ${rate(top)}, last ${rate(rates[last])}` },
    s("polygon", { class: "spark-area", points: `1,${height - 1} ${line} ${x(last)},${height - 1}` }),
    s("polyline", { class: "spark-line", points: line }),
    s("circle", { class: "spark-end", cx: x(last), cy: y(rates[last]), r: 1.8 }),
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

// Draws a batch from left (planned) to right (committed), all batches on one scale.
export function journey(batch, scale) {
  const steps = stepsOf(batch);
  const track = h("div", { class: "journey", role: "img", "aria-label": `Batch ${batch.batch}: ${inWords(steps)}` });
  const of = (ms) => `${Math.min(100, Math.max(0, (ms / scale) * 100)).toFixed(2)}%`;
  for (const step of steps) {
    const part = h("span", { class: `step step-${step.name}${step.goesOn ? " goes-on" : ""}`, title: `${step.label}: ${duration(step.to - step.from)}` });
    part.style.left = of(step.from - batch.planned_at_ms);
    part.style.width = of(step.to - step.from);
    track.append(part);
  }
  for (const ended of batch.attempts.filter((each) => each.verdict !== "commit")) {
    const how = ended.verdict === "abort" ? "aborted" : "sealed";
    const mark = h("span", { class: how, title: `Attempt ${ended.attempt} ${how}: ${ended.reason}` }, "×");
    mark.style.left = `clamp(5px, ${of(ended.decided_at_ms - batch.planned_at_ms)}, calc(100% - 5px))`; // not cut off at the edges
    track.append(mark);
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
