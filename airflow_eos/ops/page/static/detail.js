// The view of one pipeline: its state, what is to recover, its lines over time, its batches, what happened, where it is.

import { axis, h, journey, line, since, stepsOf, timeLeft } from "./charts.js";
import { pill } from "./list.js";
import { ALIVE, RUNBOOK, count, counted, duration, moment, now, rate, zone } from "./words.js";

const LIVELY = new Set(["running", "draining"]);
const PARTS = ["head", "actions", "recovery", "facts", "lines", "events", "batches", "more"];
const AT_ONCE = 6; // events that show unasked
const WIDEST = 1232; // of a drawing, as of the sheet

export class Detail {
  constructor(id, act) {
    this.id = id;
    this.act = act; // (action) => shows the confirmation
    this.plan = null;
    this.unread = []; // [ms, rows] that nobody had read, since this page is open
    this.parts = Object.fromEntries(PARTS.map((name) => [name, { element: h("section", { class: `part-${name}` }), json: "" }]));
    this.element = h("div", { class: "sheet" }, h("nav", { "aria-label": "Back" }, h("a", { class: "back", href: "#/", "aria-keyshortcuts": "Escape" }, "← Pipelines")),
      Object.values(this.parts).map((part) => part.element));
    new ResizeObserver(() => this.detail && this.showLines()).observe(this.element);
  }

  show(detail) {
    this.detail = detail;
    const row = detail.row;
    document.title = `${row.name} · ${row.state}`;
    this.element.dataset.state = row.state;
    this.put("head", [row.name, row.state, row.reason, row.since_ms, row.remarks, row.dag_id, detail.around.links], () => head(detail));
    this.put("actions", detail.actions.map((each) => [each.name, each.not_now, each.says]), () => this.actions(detail));
    this.put("facts", null, () => this.facts(detail));
    this.put("batches", [detail.batches, LIVELY.has(row.state) ? now() : 0], () => batches(detail));
    this.put("events", [detail.events], () => happened(detail));
    this.put("more", null, () => more(detail));
    this.showRecovery();
    this.showLines();
  }

  showPlan(plan) {
    this.plan = plan;
    if (plan.unread !== null) this.unread = [...this.unread, [plan.made_at_ms, plan.unread]].slice(-500);
    if (!this.detail) return;
    this.put("facts", null, () => this.facts(this.detail));
    this.showRecovery();
    this.showLines();
  }

  failed(message) {
    this.put("head", message, () => [h("h1", {}, "Pipeline"), h("p", { class: "problem", role: "alert" }, message)]);
  }

  // A part is drawn anew only where its data has changed, else focus and selection would be lost; `told` null: always.
  put(name, told, draw) {
    const json = told && JSON.stringify(told);
    const part = this.parts[name];
    if (json !== null && part.json === json) return;
    part.json = json;
    const focused = part.element.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    const unfolded = new Set([...part.element.querySelectorAll("details[open] > summary")].map(nameOf));
    part.element.replaceChildren(...[draw()].flat(Infinity).filter(Boolean));
    for (const each of part.element.querySelectorAll("summary")) each.parentElement.open = unfolded.has(nameOf(each));
    if (focused) part.element.querySelector(`[data-name="${focused}"]`)?.focus();
  }

  // Each button with why it cannot be pressed now, in words: a telephone shows no title.
  actions(detail) {
    return detail.actions.map((action) => h("div", {},
      h("button", {
        type: "button", class: `action action-${action.name}`, "data-name": action.name, "aria-disabled": action.token === null ? "true" : null,
        "aria-describedby": action.not_now ? `why-${action.name}` : null,
        onclick: () => { const newest = this.detail.actions.find((each) => each.name === action.name); this.act(this.id, newest ?? action); },
      }, action.label),
      action.not_now ? h("small", { id: `why-${action.name}` }, action.not_now) : null));
  }

  facts(detail) {
    const row = detail.row;
    if (row.state === "unreadable") return [];
    const { heartbeat: beat, watch } = row;
    const runs = detail.runs ? [h("br"), detail.runs] : [];
    // Its address is the driver's own: a browser outside of that network gets no answer.
    const ui = detail.spark_ui ? h("small", {}, h("a", { href: detail.spark_ui, target: "_blank", rel: "noopener noreferrer" }, "Spark UI"), " (opens from the driver's network only)") : null;
    return h("dl", { class: "facts" },
      fact("Rows/s", h("b", {}, row.rows_per_s === null ? "–" : rate(row.rows_per_s)), h("small", {}, row.rows_per_s !== null ? "mean of the last minute" : row.state === "looking" ? "not known yet" : "no driver lives")),
      fact("Lag", this.lag(row)),
      fact("Last settled", row.batch === null ? "no batch yet" : [h("b", {}, `batch ${row.batch}`), h("small", {}, since(row.committed_at_ms, "", " ago"))]),
      fact("Driver", beat ? [h("b", {}, beat.phase), h("small", {}, since(beat.beat_at_ms, "heartbeat ", " ago"), h("br"), `${beat.application_id} on ${beat.host}`, runs), ui] : "never seen"),
      detail.around.supervised ? fact("Supervised", h("small", {}, detail.around.supervised)) : null,
      watch ? fact("Watched", h("small", { class: watch.is_watched ? null : "uneasy" }, watch.said, watch.looked_at_ms === null ? null : [h("br"), since(watch.looked_at_ms, "last look ", " ago")])) : null,
    );
  }

  lag(row) {
    const unread = this.plan?.unread ?? null;
    const planned = row.in_flight === null ? 0 : row.lag_rows;
    const flying = row.in_flight === null ? "nothing in flight" : ["batch ", String(row.in_flight), " in flight ", since(row.planned_at_ms, "for ")];
    if (planned === null || (row.in_flight === null && unread === null)) return ["not known", h("small", {}, flying)];
    const told = `${count(planned)} planned, ${unread === null ? "what is unread is not known" : `${count(unread)} unread`}`;
    return [h("b", {}, `${count(planned + (unread ?? 0))}${unread === null ? "+" : ""} rows`), h("small", {}, told, h("br"), flying)];
  }

  showRecovery() {
    const { row } = this.detail;
    this.put("recovery", [this.plan && { ...this.plan, unread: 0 }, row.promised, row.in_flight, row.state], () => recovery(this.plan, row));
  }

  showLines() {
    // The sections' own: an empty one is not shown, and has no width.
    const width = Math.min(WIDEST, this.parts.head.element.clientWidth) - 2;
    if (width > 0) this.put("lines", null, () => lines(this.detail, this.unread, width));
  }

  key(event) {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) location.hash = "#/";
  }
}

const nameOf = (summary) => summary.textContent.replace(/[0-9,]+/g, "");
const fact = (name, ...what) => h("div", {}, h("dt", {}, name), h("dd", {}, what));
const heading = (text, ...more) => h("div", { class: "heading" }, h("h2", {}, text), ...more);
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const bad = new Set(["failed", "unreadable"]);

function head(detail) {
  const { row, around } = detail;
  const reason = row.reason.replace(/^the driver (failed|stopped)[:,]? ?/, "");
  const when = row.since_ms === null ? [] : [` since ${moment(row.since_ms)} (`, since(row.since_ms), ")"];
  const links = [...around.links.map((each) => ({ ...each, frame: "_top" })), RUNBOOK[row.state]].filter(Boolean);
  return [
    h("div", { class: "title" }, h("h1", {}, row.name), pill(row.state), h("span", { class: "muted zone" }, row.dag_id ? `task ${row.dag_id}.${row.task_id} · ` : "", `times are ${zone()}`)),
    h("p", { class: bad.has(row.state) ? "reason problem" : "reason" }, h("b", {}, capital(row.state)), when, reason ? `: ${reason}` : "", "."),
    ...row.remarks.map((each) => h("p", { class: "reason" }, `${capital(each)}.`)),
    links.length ? h("p", { class: "links" }, links.map((each) => h("a", { href: each.address, target: each.frame ?? "_blank", rel: "noopener" }, each.label))) : null,
  ];
}

// --- what is to recover ----------------------------------------------------------------------------------------------

// One line where all is well; of a driver that lives, what a recovery would do now stands behind a fold.
function recovery(plan, row) {
  if (!plan) return h("p", { class: "muted" }, "Asking what is open …");
  if (plan.error && row.state === "new") return h("p", { class: "muted" }, "Nothing was ever begun: nothing is to recover.");
  if (plan.error) return [h("p", { class: plan.untold ? "calm" : "problem" }, plan.error), row.promised && !ALIVE.has(row.state) ? openWork(null, row.promised, row.in_flight) : null];
  const checked = `(checked ${moment(plan.made_at_ms)})`;
  const blocked = plan.blocked.map((who) => h("p", { class: "remark" }, h("b", {}, "Blocked: "), who));
  const isWell = !plan.lines.length && !plan.open.length && !plan.needs_person && !plan.remarks.length;
  if (isWell) return [...blocked, h("p", { class: "well" }, h("span", { "aria-hidden": true }, "✓ "), `Nothing open, nothing to recover ${checked}`)];
  const told = [openWork(plan.open, row.promised, row.in_flight), planned(plan)];
  const fold = (line) => [...blocked, line, h("details", {}, h("summary", {}, "What a recovery would find now"), told)];
  if (row.state === "looking" && !plan.needs_person) return fold(h("p", { class: "calm" }, `${counted(plan.open.length, "piece")} of work open ${checked}; whether a driver is at it is known in a moment.`));
  if (!ALIVE.has(row.state) || plan.needs_person) return [...blocked, told];
  const open = plan.open.length ? `${counted(plan.open.length, "piece")} of work ${plan.open.length === 1 ? "is" : "are"} open in the running batch, as it should be` : "Nothing is open";
  return fold(h("p", { class: "well" }, h("span", { "aria-hidden": true }, "✓ "), `${open}; nothing to recover ${checked}`));
}

// Where no system was asked: the sum of the open work, as the checkpoint has it.
const named = (promised, batch) => [`${counted(promised.works, "piece")}, ${counted(promised.rows, "row")}`, promised.participants.join(", "), `promised by batch ${batch}; whether it is still open was not asked`];

function openWork(open, promised, batch) {
  const title = heading("Open work", h("span", { class: "muted" }, open ? "as the systems list it" : "as the checkpoint names it"));
  if (open && !open.length) return [title, h("p", { class: "calm" }, "Nothing is open.")];
  const rows = open
    ? open.map((each) => h("tr", {}, h("td", {}, h("code", {}, each.key)), h("td", {}, each.participant), h("td", { class: "wide muted" }, each.places.join(", ")), h("td", {}, since(each.opened_at_ms, "", " ago")), h("td", { class: "c-open" }, timeLeft(each.opened_at_ms, each.ends_at_ms, each.key))))
    : [h("tr", {}, named(promised, batch).map((each, i) => h("td", { class: i === 2 ? "wide muted" : null }, each)), h("td", {}, since(promised.opened_at_ms, "", " ago")), h("td", { class: "c-open" }, timeLeft(promised.opened_at_ms, promised.ends_at_ms, "promised work")))];
  return [title, scrolled("Open work", table("cards", ["work", "participant", "where", "opened", "until its system ends it"], rows))];
}

function planned(plan) {
  const title = heading("Recovery plan", h("span", { class: "muted" }, `made ${moment(plan.made_at_ms)}: nothing was done`));
  const remarks = [...plan.alive, ...plan.remarks].map((each) => h("p", { class: "muted" }, each));
  if (!plan.lines.length) return [title, h("p", { class: "calm" }, "Nothing to do: nothing is open, nothing that was promised is missing."), ...remarks];
  const rows = plan.lines.map((each) => h("tr", {}, h("td", {}, h("span", { class: "verb", "data-action": each.action }, each.action)), h("td", {}, h("code", {}, each.work)), h("td", { class: "right" }, each.age), h("td", { class: "right" }, each.left), h("td", { class: "right" }, each.rows), h("td", { class: "wide" }, each.why)));
  return [title, scrolled("Recovery plan", table("cards", ["action", "work", "age", "left", "rows", "why"], rows, new Set([2, 3, 4]))), ...remarks];
}

// --- lines over time -------------------------------------------------------------------------------------------------

const KINDS = { started: "good", "took over": "good", recovered: "good", upgraded: "new", failed: "bad", silent: "bad", superseded: "bad", "attempt given up": "warn" };
const kindOf = (what) => KINDS[what] ?? "calm";

function lines(detail, unread, width) {
  const { points, rates, row } = detail;
  const title = heading("Over time", h("span", { class: "muted" }, `the newest ${counted(points.length, "batch", "batches")}`));
  if (!rates.length) return [title, h("p", { class: "calm" }, "Lines begin with the first complete batch.")];
  const done = points.filter((each) => each[1] !== null);
  const from = points[0][0];
  const seen = Math.max(rates.at(-1)[1], done.at(-1)[1], row.heartbeat?.beat_at_ms ?? 0);
  const to = ALIVE.has(row.state) ? Math.max(now(), seen) : seen + (seen - from) * 0.06;
  const events = detail.events.filter((each) => each.at_ms >= from && each.at_ms <= to).map((each) => ({ ...each, kind: kindOf(each.what) }));
  const shared = { from, to, width, events };
  return [title, h("div", { class: "lines" },
    line({ ...shared, title: "Rows/s", path: ratesOf(rates, to), says: rate }),
    line({ ...shared, title: "Lag: rows read and not delivered yet", path: lagOf(points, to) }),
    unread.length > 1 ? line({ ...shared, title: "Rows unread, since this page is open", path: unread }) : null,
    line({ ...shared, title: "Age of the newest delivered row", path: agesOf(done, to), isTime: true }),
    axis(shared))];
}

// Rows/s of each batch, and 0 in the pauses between.
function ratesOf(rates, to) {
  const path = [];
  for (const [i, [begin, end, value]] of rates.entries()) {
    path.push([begin, value], [end, value]);
    const next = rates[i + 1]?.[0] ?? to;
    if (next > end) path.push([end, 0], [next, 0]);
  }
  return path;
}

function lagOf(points, to) {
  return points.flatMap(([plannedAt, committedAt, rows]) => {
    const end = committedAt ?? to;
    return rows === null ? [null] : [[plannedAt, 0], [plannedAt, rows], [end, rows], [end, committedAt === null ? rows : 0]];
  });
}

// Readers have the rows of a batch once it is committed: so old was its newest row then, at most; and older since.
function agesOf(done, to) {
  return done.flatMap(([plannedAt, committedAt], i) => [[committedAt, committedAt - plannedAt], [done[i + 1]?.[1] ?? to, (done[i + 1]?.[1] ?? to) - plannedAt]]);
}

// --- batches ---------------------------------------------------------------------------------------------------------

function batches(detail) {
  const title = heading("Batches", legend());
  if (!detail.batches.length) return [title, h("p", { class: "calm" }, "No batch is recorded yet.")];
  const lengths = detail.batches.filter((each) => each.committed_at_ms !== null).map((each) => stepsOf(each).at(-1).to - each.planned_at_ms).sort((a, b) => a - b);
  // One that took very long must not make a hair's breadth of all others: its bar is cut.
  const scale = Math.max(1, Math.min(lengths.at(-1) ?? 1, 3 * (lengths[Math.floor(lengths.length / 2)] ?? 1)));
  const rows = detail.batches.map((each) => {
    const last = stepsOf(each).at(-1);
    const done = each.committed_at_ms !== null;
    return h("tr", { class: done ? null : "flying" },
      h("td", { class: "right batch" }, `#${each.batch}`), h("td", {}, moment(each.planned_at_ms)), h("td", { class: "right", "data-label": "rows" }, each.rows === null ? "?" : count(each.rows)),
      h("td", { class: "wide bar" }, journey(each, scale)), h("td", { class: "right", "data-label": done ? "took" : null }, done ? duration(last.to - each.planned_at_ms) : each.stage), h("td", { class: "c-decisions" }, decisions(each)));
  });
  return [title, scrolled("Batches", table("batches", ["batch", `planned, ${zone()}`, "rows", `planned to committed; the width is ${duration(scale)}`, "took", "delivered by"], rows, new Set([0, 2, 4])))];
}

function decisions(batch) {
  if (!batch.attempts.length) return h("span", { class: "muted" }, batch.committed_at_ms === null ? "nothing yet" : "pruned");
  return batch.attempts.map((each) => h("span", {
    class: "verb", "data-action": each.verdict.toUpperCase(),
    title: `attempt ${each.attempt}, ${moment(each.decided_at_ms)}, by ${each.decided_by}${each.reason ? `: ${each.reason}` : ""}`,
  }, inShort(each)));
}

function inShort(attempt) {
  if (attempt.verdict === "abort") return `attempt ${attempt.attempt} given up`;
  const works = attempt.works ? counted(attempt.works, "transaction") : "no rows";
  return attempt.attempt === 1 ? works : `attempt ${attempt.attempt}: ${works}`;
}

const legend = () => h("span", { class: "legend" }, [["evaluate", "planned"], ["prepare", "prepared"], ["replay", "replayed"], ["settle", "decided, settled"]].map(([name, label]) => h("span", {}, h("i", { class: `step-${name}`, "aria-hidden": true }), label)));

// --- what happened ---------------------------------------------------------------------------------------------------

function happened(detail) {
  const title = heading("What happened", h("span", { class: "muted" }, `times are by several clocks, ${zone()}`));
  if (!detail.events.length) return [title, h("p", { class: "calm" }, "No driver has run yet.")];
  const rows = detail.events.map((each) => h("li", { "data-kind": kindOf(each.what) }, h("time", { datetime: new Date(each.at_ms).toISOString() }, moment(each.at_ms)), h("b", {}, each.what), h("span", {}, each.who, each.why ? h("span", { class: "muted" }, ` · ${each.why}`) : null)));
  const list = (some) => h("ol", { class: "events" }, some);
  const earlier = rows.length - AT_ONCE;
  return [title, list(rows.slice(0, AT_ONCE)), earlier > 0 ? h("details", {}, h("summary", {}, `${count(earlier)} earlier`), list(rows.slice(AT_ONCE))) : null];
}

// --- where it is -----------------------------------------------------------------------------------------------------

function more(detail) {
  const told = [heading("Where"), h("dl", { class: "places" }, fact("Checkpoint", h("code", {}, detail.row.location)), detail.participants.map(delivered), detail.cut ? cutOf(detail.cut) : null)];
  const kafka = detail.sources.filter((each) => each.ends).flatMap((each) => Object.entries(each.ends));
  if (kafka.length) {
    const partition = ([number, at]) => h("span", { class: "pair" }, h("span", { class: "muted" }, `${number}: `), count(at));
    const rows = kafka.map(([topic, ends]) => h("tr", {}, h("td", {}, h("code", {}, topic)), h("td", { class: "wide" }, Object.entries(ends).map(partition))));
    told.push(heading("Read up to"), scrolled("Offsets", table("", ["topic", "offsets by partition"], rows)));
  }
  const size = detail.state_size;
  if (size) {
    const disk = size.file_bytes === null ? "" : `, ${megabytes(size.file_bytes)} of files`;
    told.push(heading("State"), h("p", {}, `${counted(size.rows, "row")}, ${megabytes(size.memory_bytes)} in memory${disk}, after batch ${size.batch_id}`));
  }
  return told;
}

// A target begins with its kind, which the heading says already.
function delivered(each) {
  const target = each.target.startsWith(`${each.kind}:`) ? each.target.slice(each.kind.length + 1) : each.target;
  const address = Object.entries(each.address).map(([what, value]) => h("span", { class: "pair" }, `${what.replaceAll("_", " ")} `, h("code", {}, value)));
  return fact(`Delivers to ${each.kind}`, h("code", {}, target || each.name), address.length ? h("details", {}, h("summary", {}, "address"), h("small", {}, address)) : null);
}

function cutOf(cut) {
  const without = cut.outputs.filter((each) => !each.is_known).map((each) => h("span", { class: "pair" }, h("code", {}, each.name), ` has no place: ${each.why}`));
  const which = cut.outputs.length === 1 ? "A reader can stop after" : "All outputs have the same batches up to";
  return fact("Newest consistent cut", `${which} batch ${cut.batch}`, h("small", {}, since(cut.written_at_ms, "written ", " ago"), cut.incomplete === null ? "" : ` · rows of batch ${cut.incomplete} may be missing for good`, without));
}

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

function table(kind, heads, rows, right = new Set()) {
  for (const each of rows) [...each.children].forEach((cell, i) => { if (kind === "cards") cell.dataset.label = heads[i]; });
  return h("table", { class: `plain ${kind}` }, h("thead", {}, h("tr", {}, heads.map((each, i) => h("th", { scope: "col", class: right.has(i) ? "right" : null }, each)))), h("tbody", {}, rows));
}

const scrolled = (label, inner) => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, inner);
